/* AVX-VNNI: the dot products of AVX-512 VNNI for 256 bits in the encoding of AVX2, on processors without AVX-512.
 *
 * No emulator at hand knows it, so the tests compile these files with EP_VNNI_OF_AVX512: the same operations in the other encoding. */
#ifndef EP_AVXVNNI_H
#define EP_AVXVNNI_H

#ifdef __clang__
#define EP_KNOWS_AVXVNNI (__clang_major__ >= 12)
#elif defined(__GNUC__)
#define EP_KNOWS_AVXVNNI (__GNUC__ >= 11)
#else
#define EP_KNOWS_AVXVNNI 0
#endif

#ifdef EP_VNNI_OF_AVX512
#define AVX2_TARGET "avx2,avx512vnni,avx512vl"
#define VNNI(operation) _mm256_##operation##_epi32
#else
#define AVX2_TARGET "avx2,avxvnni"
#define VNNI(operation) _mm256_##operation##_avx_epi32
#endif

#include "avx2.h"

#if defined(EP_HAS_AVX2) && EP_KNOWS_AVXVNNI
#define EP_HAS_AVXVNNI 1
void ep_avxvnni_groups(ep_kernels *table); /* avxvnni_groups.c */
#endif

#endif
