/* x86-64 with AVX-512: what avx512_linear.c leaves. The kernels of AVX2 remain where wider vectors gain nothing. */
#include "avx512.h"

#ifdef EP_HAS_AVX512
#include "../fixed.h"

/* ---- rounding --------------------------------------------------------------------------------------------------- */

/* Eight of requant(a, m, n) for n >= 33 and m (even dwords) above -2^31; |a| <= 2^62. less: n - 33 in 64 bits, |n| < 2^31. Returns 0
 * where that does not hold. With hi = floor(a * m / 2^32), |hi| <= 2^61, the result is floor((floor(hi / 2^(n-33)) + 1) / 2). */
INLINE int requant8(int32_t *y, __m512i a, __m512i m, __m512i less, uint64_t *count) {
  __mmask16 lowest = _mm512_mask_cmpeq_epi32_mask(0x5555, m, _mm512_set1_epi32(INT32_MIN));
  if (_mm512_movepi64_mask(less) | lowest) return 0;
  __mmask8 negative = _mm512_movepi64_mask(_mm512_slli_epi64(m, 32));
  a = _mm512_mask_sub_epi64(a, negative, _mm512_setzero_si512(), a);
  m = _mm512_abs_epi32(m);
  __m512i hi = _mm512_add_epi64(_mm512_mul_epi32(odd(a), m), odd(_mm512_mul_epu32(a, m)));
  __m512i v = _mm512_srai_epi64(_mm512_add_epi64(_mm512_srav_epi64(hi, less), _mm512_set1_epi64(1)), 1);
  __m256i short_of = _mm512_cvtsepi64_epi32(v);
  __mmask8 changed = _mm512_cmpneq_epi64_mask(_mm512_cvtepi32_epi64(short_of), v);
  if (changed) *count += (uint64_t)__builtin_popcount(changed);
  _mm256_storeu_si256((__m256i *)y, short_of);
  return 1;
}

INLINE __m512i less33(int32_t n, __m256i minus) {
  return _mm512_cvtepi32_epi64(_mm256_sub_epi32(_mm256_set1_epi32(n - 33), minus));
}

AVX512 static void scale_kv16(int32_t *y, const int64_t *dot, const uint8_t *less, int32_t m, int32_t shift, int32_t n, uint64_t *count) {
  const __m512i factor = _mm512_set1_epi32(m);
  for (int32_t j = 0; j < n; j += 8) {
    if (j + 8 <= n) {
      __m256i minus = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(less + j)));
      if (requant8(y + j, load(dot + j), factor, less33(shift, minus), count)) continue;
    }
    for (int32_t k = j; k < j + 8 && k < n; k++) y[k] = ep_requant(dot[k], m, shift - less[k], count);
  }
}

AVX512 static void scale_kv8(int32_t *y, const int64_t *dot, const int32_t *a, int32_t m, int32_t shift, int32_t n, uint64_t *count) {
  const __m512i factor = _mm512_set1_epi32(m), less = less33(shift, _mm256_setzero_si256());
  for (int32_t j = 0; j < n; j += 8) {
    if (j + 8 <= n) {
      __m512i scaled = _mm512_mul_epi32(load(dot + j), _mm512_cvtepi32_epi64(load256(a + j)));
      if (requant8(y + j, scaled, factor, less, count)) continue;
    }
    for (int32_t k = j; k < j + 8 && k < n; k++) y[k] = ep_requant(dot[k] * a[k], m, shift, count);
  }
}

AVX512 static void requant(int32_t *y, const int64_t *acc, int32_t m, int32_t shift, int32_t n, uint64_t *count) {
  const __m512i factor = _mm512_set1_epi32(m), less = less33(shift, _mm256_setzero_si256());
  for (int32_t i = 0; i < n; i += 8) {
    if (i + 8 <= n && requant8(y + i, load(acc + i), factor, less, count)) continue;
    for (int32_t k = i; k < i + 8 && k < n; k++) y[k] = ep_requant(acc[k], m, shift, count);
  }
}

AVX512 static void requant_rows(int32_t *y, const int64_t *acc, const int32_t *scales, int32_t shift, int32_t n, uint64_t *count) {
  int32_t r = 0;
  for (; r + 8 <= n; r += 8) {
    __m512i m = load(scales + 2 * r); /* m, h, ... */
    __m512i less = _mm512_srai_epi64(_mm512_add_epi32(m, _mm512_set1_epi32(shift - 33)), 32);
    if (requant8(y + r, load(acc + r), m, less, count)) continue;
    for (int32_t k = r; k < r + 8; k++) y[k] = ep_requant(acc[k], scales[2 * k], scales[2 * k + 1] + shift, count);
  }
  for (; r < n; r++) y[r] = ep_requant(acc[r], scales[2 * r], scales[2 * r + 1] + shift, count);
}

void ep_avx512_kernels(ep_kernels *table, uint32_t cpu) {
  if (!(cpu & EP_CPU_AVX2) || !(cpu & EP_CPU_AVX512)) return;
  table->name = "avx512";
  table->scale_kv16 = scale_kv16;
  table->scale_kv8 = scale_kv8;
  table->requant = requant;
  table->requant_rows = requant_rows;
  ep_avx512_linear(table);
}

#else

void ep_avx512_kernels(ep_kernels *table, uint32_t cpu) {
  (void)table;
  (void)cpu;
}

#endif
