/* What the kernels for AVX-512 share. Processors from Ice Lake and Zen 4 on have these extensions together. */
#ifndef EP_AVX512_H
#define EP_AVX512_H

#include "edgepos.h"
#include "kernels.h"

#if defined(__GNUC__) && defined(__x86_64__) && defined(__SSE2__) && !defined(EDGEPOS_GENERIC_ONLY)
#define EP_HAS_AVX512 1
#include <immintrin.h>

#include "../fixed.h"

#define EP_AVX512_TARGET "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512ifma,avx512vbmi"
#define AVX512 __attribute__((target(EP_AVX512_TARGET)))
#define INLINE static inline __attribute__((always_inline, target(EP_AVX512_TARGET)))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* The compiler shall reach several tokens from one address instead of keeping them all in registers. */
#define KEEP(p) __asm__("" : "+r"(p))
/* What is loaded shall stay in a register instead of being loaded for every use. */
#define KEEP_VECTOR(v) __asm__("" : "+v"(v))

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

/* Two numbers side by side, in every dword: what vpdpwssd multiplies pairs by. */
INLINE __m512i pair_at(const int16_t *p) {
  int32_t pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  return _mm512_set1_epi32(pair);
}

INLINE __m128i two(const int32_t *a, const int32_t *b) {
  return _mm_castps_si128(_mm_loadh_pi(_mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)a)), (const __m64 *)b));
}

/* Entries i and i + 1 of a table for each of eight i: loads one by one, which take less time than a gather. */
INLINE __m512i neighbours(const int32_t *table, __m256i i) {
  _Alignas(32) int32_t at[8];
  _mm256_store_si256((__m256i *)at, i);
  __m256i a = _mm256_inserti128_si256(_mm256_castsi128_si256(two(table + at[0], table + at[1])), two(table + at[2], table + at[3]), 1);
  __m256i b = _mm256_inserti128_si256(_mm256_castsi128_si256(two(table + at[4], table + at[5])), two(table + at[6], table + at[7]), 1);
  return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

/* Of each quarter of four vectors its sum over four dwords: dword i of a quarter is that of vector i. */
INLINE __m512i quarters(const __m512i s[4]) {
  __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(s[0], s[1]), _mm512_unpackhi_epi32(s[0], s[1]));
  __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(s[2], s[3]), _mm512_unpackhi_epi32(s[2], s[3]));
  return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

INLINE __m512i fold(__m512i a, __m512i b) { /* quarters 0 + 1 and 2 + 3 of both */
  return _mm512_add_epi32(_mm512_shuffle_i64x2(a, b, 0x88), _mm512_shuffle_i64x2(a, b, 0xdd));
}

/* Four bytes side by side, in every dword: what vpdpbusd multiplies four columns by. */
INLINE __m512i four_at(const int8_t *p) {
  int32_t four;
  __builtin_memcpy(&four, p, sizeof four);
  return _mm512_set1_epi32(four);
}

/* high of x = high * 256 + low, both signed bytes. */
INLINE __m512i high_byte(__m512i x) { return _mm512_srai_epi16(_mm512_add_epi16(x, _mm512_set1_epi16(128)), 8); }

/* sat32 of eight, counted. */
INLINE void put(int32_t *y, __m512i v, uint64_t *count) {
  __m256i s = _mm512_cvtsepi64_epi32(v);
  __mmask8 changed = _mm512_cmpneq_epi64_mask(_mm512_cvtepi32_epi64(s), v);
  if (changed) *count += (uint64_t)__builtin_popcount(changed);
  _mm256_storeu_si256((__m256i *)y, s);
}

/* floor(a * m / 2^n + 1/2) of eight for n >= 33, |a| <= 2^62; m (even dwords) without its sign, less: n - 33. With
 * hi = floor(a * m / 2^32), |hi| <= 2^61, that is floor((floor(hi / 2^(n-33)) + 1) / 2). */
INLINE __m512i rounded(__m512i a, __mmask8 negative, __m512i m, __m512i less) {
  a = _mm512_mask_sub_epi64(a, negative, _mm512_setzero_si512(), a);
  __m512i hi = _mm512_add_epi64(_mm512_mul_epi32(odd(a), m), odd(_mm512_mul_epu32(a, m)));
  return _mm512_srai_epi64(_mm512_add_epi64(_mm512_srav_epi64(hi, less), _mm512_set1_epi64(1)), 1);
}

INLINE int lowest(__m512i m) { return _mm512_mask_cmpeq_epi32_mask(0x5555, m, _mm512_set1_epi32(INT32_MIN)) != 0; }

/* Eight of requant(a, m, n); returns 0, with nothing done, where n < 33 or m is -2^31. */
INLINE int requant8(int32_t *y, __m512i a, __m512i m, __m512i less, uint64_t *count) {
  if (_mm512_movepi64_mask(less) || lowest(m)) return 0;
  put(y, rounded(a, _mm512_movepi64_mask(_mm512_slli_epi64(m, 32)), _mm512_abs_epi32(m), less), count);
  return 1;
}

/* The low halves of 64 bits as even and odd dwords. */
INLINE __m512i joined(__m512i even, __m512i uneven) { return _mm512_mask_shuffle_epi32(even, 0xaaaa, uneven, 0xa0); }

/* requant(a * b, m, n) of sixteen for m >= 0, 33 <= n <= 96, |a * b| <= 2^62 and results of 32 bits. */
INLINE __m512i requant_products16(__m512i a, __m512i b, int32_t m, int32_t n) {
  const __m512i factor = _mm512_set1_epi32(m), less = _mm512_set1_epi64((int64_t)n - 33);
  return joined(rounded(_mm512_mul_epi32(a, b), 0, factor, less), rounded(_mm512_mul_epi32(odd(a), odd(b)), 0, factor, less));
}

void ep_avx512_linear(ep_kernels *table);
void ep_avx512_groups(ep_kernels *table); /* after it */
void ep_avx512_attention(ep_kernels *table);
void ep_avx512_blocks(ep_kernels *table);
void ep_avx512_elements(ep_kernels *table);
#endif

#endif
