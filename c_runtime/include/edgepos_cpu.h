/* ep_cpu_detect: the EP_CPU_ bits of the processor this program runs on, for ep_config.cpu. The library itself asks nobody:
 * on ARM only the operating system knows. Where nothing can be asked, what the compiler was told to assume. */
#ifndef EDGEPOS_CPU_H
#define EDGEPOS_CPU_H

#include <stdint.h>

#include "edgepos.h"

static inline uint32_t ep_cpu_detect(void);

#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))
#include <cpuid.h>

static inline uint32_t ep_cpu_detect(void) {
  const unsigned avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL | bit_AVX512IFMA;
  unsigned a, b, c, d, low, high;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & 6) != 6) return 0; /* the operating system does not keep XMM and YMM */
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX2)) return 0;
  uint32_t has = EP_CPU_AVX2, other;
  /* masks, the upper halves of ZMM0 to 15, and ZMM16 to 31 */
  if ((low & 0xe0) == 0xe0 && (b & avx512) == avx512 && (c & bit_AVX512VNNI) && (c & bit_AVX512VBMI)) has |= EP_CPU_AVX512;
  if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &other) && (a & 1 << 4)) has |= EP_CPU_AVXVNNI;
  return has;
}

#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

static inline uint32_t ep_cpu_detect(void) {
  uint32_t has = (uint32_t)getauxval(AT_HWCAP), more = (uint32_t)getauxval(AT_HWCAP2);
  uint32_t neon = has >> 1 & 1, dotprod = has >> 20 & neon, i8mm = more >> 13 & dotprod; /* HWCAP_ASIMD, _ASIMDDP, HWCAP2_I8MM */
  return neon * EP_CPU_NEON | dotprod * EP_CPU_DOTPROD | i8mm * EP_CPU_I8MM;
}

#elif defined(__arm__) && defined(__linux__)
#include <sys/auxv.h>

static inline uint32_t ep_cpu_detect(void) { return ((uint32_t)getauxval(AT_HWCAP) >> 12 & 1) * EP_CPU_NEON; } /* HWCAP_NEON */

#elif defined(__arm__) && __ARM_ARCH_PROFILE == 'M' && defined(__ARM_FEATURE_SIMD32)

static inline uint32_t ep_cpu_detect(void) {
#if defined(__ARM_FEATURE_MVE) && __ARM_FEATURE_MVE
  return EP_CPU_DSP | EP_CPU_MVE;
#else
  return EP_CPU_DSP;
#endif
}

#elif defined(__ARM_NEON)

static inline uint32_t ep_cpu_detect(void) {
#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD) && defined(__ARM_FEATURE_MATMUL_INT8)
  return EP_CPU_NEON | EP_CPU_DOTPROD | EP_CPU_I8MM;
#elif defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
  return EP_CPU_NEON | EP_CPU_DOTPROD;
#else
  return EP_CPU_NEON;
#endif
}

#else

static inline uint32_t ep_cpu_detect(void) { return 0; }

#endif
#endif
