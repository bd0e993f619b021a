/* What the kernels for AVX2 share. Only their functions are compiled for it, so the program still starts on the oldest x86-64. */
#ifndef EP_AVX2_H
#define EP_AVX2_H

#include "edgepos.h"
#include "kernels.h"

#if defined(__GNUC__) && defined(__x86_64__) && defined(__SSE2__) && !defined(EDGEPOS_GENERIC_ONLY)
#define EP_HAS_AVX2 1
#include <immintrin.h>

#include "../fixed.h"

/* A file that compiles its functions for more than AVX2 says so before it includes this. */
#ifndef AVX2_TARGET
#define AVX2_TARGET "avx2"
#endif
#define AVX2 __attribute__((target(AVX2_TARGET)))
#define INLINE static inline __attribute__((always_inline, target(AVX2_TARGET)))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

enum { W8, W8G32, W4G32 };
enum { AHEAD = 4096 }; /* bytes of weights that are asked for before they are needed; the next row follows */

INLINE __m256i load(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
INLINE __m128i load128(const void *p) { return _mm_loadu_si128((const __m128i *)p); }
INLINE void store(void *p, __m256i v) { _mm256_storeu_si256((__m256i *)p, v); }
INLINE __m256i widen(const int8_t *p) { return _mm256_cvtepi8_epi16(load128(p)); }
INLINE __m256i odd(__m256i v) { return _mm256_srli_epi64(v, 32); } /* odd dwords to where mul_epi32 reads */

/* s + the sums of two products each of int16. */
INLINE __m256i add_dots(__m256i s, __m256i a, __m256i b) {
#ifdef VNNI
  return VNNI(dpwssd)(s, a, b);
#else
  return _mm256_add_epi32(s, _mm256_madd_epi16(a, b));
#endif
}

INLINE int64_t add_across64(__m256i v) {
  __m128i s = _mm_add_epi64(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  return _mm_cvtsi128_si64(s) + _mm_extract_epi64(s, 1);
}

/* A group of a row as bytes, in the order of columns. */
INLINE __m256i row32(const int8_t *w, int form) {
  if (form != W4G32) return load(w);
  __m256i v = _mm256_cvtepu8_epi16(load128(w)); /* two codes in each 16 bits */
  return _mm256_and_si256(_mm256_or_si256(v, _mm256_slli_epi16(v, 4)), _mm256_set1_epi8(15));
}

void ep_avx2_elements(ep_kernels *table);
#endif

#endif
