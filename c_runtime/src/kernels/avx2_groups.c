/* The inputs of LINEAR in groups (a8g32) with AVX2, and its kernels. */
#include "avx2.h"

#ifdef EP_HAS_AVX2
#include "avx2_groups.h"

/* (n_i + 254 * d) / (2 * d) of docs/arithmetic.md, less 127: the dividend is below 2^17, so its product with
 * floor(2^32 / (2 * d)) + 1 has the quotient in its high half. */
INLINE __m256i codes(const int32_t *x, int32_t s, int32_t d, uint32_t reciprocal) {
  __m256i v = load(x), twice = s ? _mm256_sra_epi32(v, _mm_cvtsi32_si128(s - 1)) : _mm256_add_epi32(v, v);
  __m256i n = _mm256_add_epi32(twice, _mm256_set1_epi32(255 * d)), by = _mm256_set1_epi32((int32_t)reciprocal);
  __m256i quotient = _mm256_blend_epi32(odd(_mm256_mul_epu32(n, by)), _mm256_mul_epu32(odd(n), by), 0xaa);
  return _mm256_sub_epi32(quotient, _mm256_set1_epi32(127));
}

INLINE uint32_t largest(const int32_t *x) {
  __m256i a = _mm256_max_epu32(_mm256_abs_epi32(load(x)), _mm256_abs_epi32(load(x + 8)));
  a = _mm256_max_epu32(a, _mm256_max_epu32(_mm256_abs_epi32(load(x + 16)), _mm256_abs_epi32(load(x + 24))));
  __m128i b = _mm_max_epu32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  b = _mm_max_epu32(b, _mm_shuffle_epi32(b, 0x4e));
  return (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(b, _mm_shuffle_epi32(b, 0xb1)));
}

AVX2 static int32_t quant8g32(int8_t *q, int32_t *d, const int32_t *x, int32_t n) {
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  int32_t rest[32] = {0}, whole = n / 32 * 32; /* the last group, if it is not whole */
  uint32_t most = 0;
  for (int32_t i = whole; i < n; i++) rest[i - whole] = x[i];
  for (int32_t i = 0; i < n; i += 32) {
    uint32_t a = largest(i < whole ? x + i : rest);
    d[i / 32] = (int32_t)a; /* read as unsigned below */
    if (a > most) most = a;
  }
  int32_t s = ep_quant8g32_shift(most);
  for (int32_t i = 0; i < n; i += 32, q += 32, d++) {
    const int32_t *from = i < whole ? x + i : rest;
    *d = ep_quant8g32_scale((uint32_t)*d, s);
    uint32_t reciprocal = 0x80000000u / (uint32_t)*d + 1;
    __m256i a = _mm256_packs_epi32(codes(from, s, *d, reciprocal), codes(from + 8, s, *d, reciprocal));
    __m256i b = _mm256_packs_epi32(codes(from + 16, s, *d, reciprocal), codes(from + 24, s, *d, reciprocal));
    store(q, _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b), order));
  }
  return s;
}

void ep_avx2_groups(ep_kernels *table, uint32_t cpu) {
  if (!(cpu & EP_CPU_AVX2)) return;
  table->quant8g32 = EP_KERNEL_ANY(EP_FEATURES_IN8, quant8g32);
  put_groups(table);
}

#else

void ep_avx2_groups(ep_kernels *table, uint32_t cpu) {
  (void)table;
  (void)cpu;
}

#endif
