/* What the kernels for AVX-512 share. Processors from Ice Lake and Zen 4 on have these extensions together. */
#ifndef EP_AVX512_H
#define EP_AVX512_H

#include "edgepos.h"
#include "kernels.h"

#if defined(__GNUC__) && defined(__x86_64__) && defined(__SSE2__) && !defined(EDGEPOS_GENERIC_ONLY)
#define EP_HAS_AVX512 1
#include <immintrin.h>

#define EP_AVX512_TARGET "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512ifma"
#define AVX512 __attribute__((target(EP_AVX512_TARGET)))
#define INLINE static inline __attribute__((always_inline, target(EP_AVX512_TARGET)))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* The compiler shall reach several tokens from one address instead of keeping them all in registers. */
#define KEEP(p) __asm__("" : "+r"(p))

INLINE __m512i load(const void *p) { return _mm512_loadu_si512(p); }
INLINE __m256i load256(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
INLINE void store(void *p, __m512i v) { _mm512_storeu_si512(p, v); }
INLINE __m512i odd(__m512i v) { return _mm512_srli_epi64(v, 32); } /* odd dwords to where mul_epi32 reads */

/* Bits 0 to n - 1, n <= 64. */
INLINE uint64_t first(size_t n) { return n >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << n) - 1; }

/* The first n <= 8 of these numbers, widened to 64 bits; the others are 0 and are not read. */
INLINE __m512i load16(const int16_t *p, size_t n) {
  return _mm512_cvtepi16_epi64(_mm_maskz_loadu_epi16((__mmask8)first(n), p));
}

void ep_avx512_linear(ep_kernels *table);
#endif

#endif
