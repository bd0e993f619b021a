/* x86-64 with AVX-512: what avx512_linear.c leaves. The kernels of AVX2 remain where wider vectors gain nothing. */
#include "avx512.h"

#ifdef EP_HAS_AVX512
/* ---- rounding --------------------------------------------------------------------------------------------------- */

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

AVX512 static void align_kv8(int32_t *p, const int32_t *a, int32_t m, int32_t shift, int32_t n) {
  uint64_t never = 0;
  int32_t j = 0;
  for (; j + 16 <= n && m >= 0 && shift >= 33 && shift <= 96; j += 16) store(p + j, requant_products16(load(p + j), load(a + j), m, shift));
  for (; j < n; j++) p[j] = ep_requant((int64_t)p[j] * a[j], m, shift, &never);
}

AVX512 static void requant(int32_t *y, const int64_t *acc, int32_t m, int32_t shift, int32_t n, uint64_t *count) {
  const __m512i factor = _mm512_set1_epi32(m), less = less33(shift, _mm256_setzero_si256());
  for (int32_t i = 0; i < n; i += 8) {
    if (i + 8 <= n && requant8(y + i, load(acc + i), factor, less, count)) continue;
    for (int32_t k = i; k < i + 8 && k < n; k++) y[k] = ep_requant(acc[k], m, shift, count);
  }
}

enum { AHEAD = 1024 }; /* bytes of scales: those of the next tile of one token */

/* Eight rows of all tokens; m, h, ... in scales; most: of less. Returns 0, with nothing done, for numbers that requant8 does not take. */
INLINE int rows8(int32_t *y, size_t stride, const int64_t *acc, const int32_t *scales, int32_t shift, const int32_t *less, int32_t most,
                 size_t rows, int32_t tokens, uint64_t *count) {
  __m512i m = load(scales), h = _mm512_add_epi64(_mm512_srai_epi64(m, 32), _mm512_set1_epi64((int64_t)shift - 33));
  if (_mm512_movepi64_mask(_mm512_sub_epi64(h, _mm512_set1_epi64(most))) || lowest(m)) return 0;
  __mmask8 negative = _mm512_movepi64_mask(_mm512_slli_epi64(m, 32));
  m = _mm512_abs_epi32(m);
  for (int32_t t = 0; t < tokens; t++, y += stride, acc += rows)
    put(y, rounded(load(acc), negative, m, _mm512_sub_epi64(h, _mm512_set1_epi64(less[t]))), count);
  return 1;
}

/* sat32 of sixteen, counted; 2^31 has been added to them. */
INLINE void put16(int32_t *y, __m512i a, __m512i b, uint64_t *count) {
  const __m512i low = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30), lift = _mm512_set1_epi64((int64_t)1 << 31);
  store(y, _mm512_xor_si512(_mm512_permutex2var_epi32(a, low, b), _mm512_set1_epi32(INT32_MIN)));
  if (!_mm512_test_epi64_mask(_mm512_or_si512(a, b), _mm512_set1_epi64(-((int64_t)1 << 32)))) return;
  put(y, _mm512_sub_epi64(a, lift), count);
  put(y + 8, _mm512_sub_epi64(b, lift), count);
}

/* Sixteen rows with multipliers above 0 and accumulators within 2^51: with M = m * 2^21 the upper 52 bits of (acc + 2^51) * M, all without
 * sign, are floor(acc * m / 2^31) + M / 2. A line of y is written at once. Returns 0 for other numbers; y is to be computed again then. */
INLINE int rows16(int32_t *y, size_t stride, const int64_t *acc, const int32_t *scales, int32_t shift, const int32_t *less, int32_t most,
                  size_t rows, int32_t tokens, uint64_t *count) {
  const __m512i bias = _mm512_set1_epi64((int64_t)1 << 51), one = _mm512_set1_epi64(((int64_t)1 << 32) + 1);
  __m512i m[2], from[2], by[2], wide = _mm512_setzero_si512();
  UNROLL for (int i = 0; i < 2; i++) {
    __m512i scale = load(scales + 16 * i);
    m[i] = _mm512_slli_epi64(_mm512_and_si512(scale, _mm512_set1_epi64(INT32_MAX)), 21);
    from[i] = _mm512_sub_epi64(_mm512_setzero_si512(), _mm512_srli_epi64(m[i], 1));
    by[i] = _mm512_add_epi64(_mm512_srai_epi64(scale, 32), _mm512_set1_epi64((int64_t)shift - 32));
    if (_mm512_movepi64_mask(_mm512_sub_epi64(by[i], _mm512_set1_epi64(most))) || _mm512_movepi64_mask(_mm512_slli_epi64(scale, 32))) return 0;
  }
  for (int32_t t = 0; t < tokens; t++, y += stride, acc += rows) {
    __m512i a[2], minus = _mm512_set1_epi64(less[t]);
    UNROLL for (int i = 0; i < 2; i++) {
      a[i] = _mm512_add_epi64(load(acc + 8 * i), bias);
      wide = _mm512_or_si512(wide, a[i]);
      a[i] = _mm512_srav_epi64(_mm512_madd52hi_epu64(from[i], a[i], m[i]), _mm512_sub_epi64(by[i], minus));
      a[i] = _mm512_srai_epi64(_mm512_add_epi64(a[i], one), 1);
    }
    put16(y, a[0], a[1], count);
  }
  return !_mm512_test_epi64_mask(wide, _mm512_set1_epi64(-((int64_t)1 << 52)));
}

AVX512 static void requant_rows(int32_t *y, size_t stride, const int64_t *acc, const int32_t *scales, int32_t shift, const int32_t *less,
                         int32_t rows, int32_t tokens, uint64_t *count) {
  int32_t most = less[0], r = 0;
  for (int32_t t = 1; t < tokens; t++)
    if (less[t] > most) most = less[t];
  for (; r + 16 <= rows; r += 16) {
    uint64_t more = 0;
    _mm_prefetch((const char *)(scales + 2 * r) + AHEAD, _MM_HINT_T0);
    _mm_prefetch((const char *)(scales + 2 * r) + AHEAD + 64, _MM_HINT_T0);
    if (!rows16(y + r, stride, acc + r, scales + 2 * r, shift, less, most, (size_t)rows, tokens, &more)) break;
    *count += more;
  }
  for (; r < rows; r += 8) {
    _mm_prefetch((const char *)(scales + 2 * r) + AHEAD, _MM_HINT_T0);
    if (r + 8 <= rows && rows8(y + r, stride, acc + r, scales + 2 * r, shift, less, most, (size_t)rows, tokens, count)) continue;
    for (int32_t t = 0; t < tokens; t++)
      for (int32_t k = r; k < r + 8 && k < rows; k++)
        y[(size_t)t * stride + (size_t)k] =
            ep_requant(acc[(size_t)t * (size_t)rows + (size_t)k], scales[2 * k], scales[2 * k + 1] + shift - less[t], count);
  }
}

void ep_avx512_kernels(ep_kernels *table, uint32_t cpu) {
  if (!(cpu & EP_CPU_AVX2) || !(cpu & EP_CPU_AVX512)) return;
  table->name = "avx512";
  table->scale_kv16 = EP_KERNEL(EP_FEATURE_KV16, scale_kv16);
  table->scale_kv8 = EP_KERNEL(EP_FEATURE_KV8, scale_kv8);
  table->align_kv8 = EP_KERNEL(EP_FEATURE_KV8, align_kv8);
  table->requant = requant;
  table->requant_rows = requant_rows;
  ep_avx512_linear(table);
  ep_avx512_groups(table);
  ep_avx512_attention(table);
  ep_avx512_blocks(table);
  ep_avx512_elements(table);
}

#else

void ep_avx512_kernels(ep_kernels *table, uint32_t cpu) {
  (void)table;
  (void)cpu;
}

#endif
