/* The operators that work number by number, eight at a time in 64 bits with AVX-512. Shifts that no compiler of programs chooses are
 * left to the plain code, as are the last numbers of a row. */
#include "avx512.h"

#ifdef EP_HAS_AVX512
#include "elements.h"

/* rshift_round for -31 <= n <= 63; |x| <= 2^31 for n < 0. */
static int plain(int32_t n) { return n >= -31 && n <= 63; }

INLINE __m512i shift_round(__m512i x, int32_t n) {
  if (n <= 0) return _mm512_sll_epi64(x, _mm_cvtsi32_si128(-n));
  return _mm512_srai_epi64(_mm512_add_epi64(_mm512_sra_epi64(x, _mm_cvtsi32_si128(n - 1)), _mm512_set1_epi64(1)), 1);
}

INLINE __m512i wide(const int32_t *x) { return _mm512_cvtepi32_epi64(load256(x)); }
INLINE __m512i some(const int32_t *x, __mmask8 there) { return _mm512_cvtepi32_epi64(_mm256_maskz_loadu_epi32(there, x)); }

AVX512 static void add(int32_t *y, const int32_t *a, const int32_t *b, const int32_t shift[3], int32_t n, uint64_t *count) {
  int32_t i = 0;
  __m128i la = _mm_cvtsi32_si128(shift[0]), lb = _mm_cvtsi32_si128(shift[1]);
  for (; i + 8 <= n && shift[2] >= 0 && plain(shift[2]); i += 8)
    put(y + i, shift_round(_mm512_add_epi64(_mm512_sll_epi64(wide(a + i), la), _mm512_sll_epi64(wide(b + i), lb)), shift[2]), count);
  for (; i < n; i++) y[i] = ep_sat32_count(ep_add_at(a[i], b[i], shift), count);
}

AVX512 static void mul(int32_t *y, const int32_t *a, const int32_t *b, int32_t shift, int32_t n, uint64_t *count) {
  int32_t i = 0;
  for (; i + 8 <= n && shift >= 0 && plain(shift); i += 8)
    put(y + i, shift_round(_mm512_mul_epi32(wide(a + i), wide(b + i)), shift), count);
  for (; i < n; i++) y[i] = ep_sat32_count(ep_rshift_round((int64_t)a[i] * b[i], shift), count);
}

/* T[i] * (2^18 - f) + T[i + 1] * f, what ep_curve_at computes; at the end f is 2^18, so that nothing is read beyond it. */
INLINE __m512i curve8(const int32_t *table, __m256i u, int32_t out_shift) {
  const __m256i end = _mm256_set1_epi32(1 << 28);
  __m256i v = _mm256_add_epi32(_mm256_min_epi32(_mm256_max_epi32(u, _mm256_sub_epi32(_mm256_setzero_si256(), end)), end), end);
  __m256i i = _mm256_min_epi32(_mm256_srli_epi32(v, 18), _mm256_set1_epi32(2047));
  __m512i f = _mm512_cvtepi32_epi64(_mm256_sub_epi32(v, _mm256_slli_epi32(i, 18))), both = neighbours(table, i);
  __m512i from = _mm512_mul_epi32(both, _mm512_sub_epi64(_mm512_set1_epi64(0x40000), f));
  return shift_round(_mm512_add_epi64(from, _mm512_mul_epi32(odd(both), f)), out_shift);
}

AVX512 static void act(int32_t *y, const int32_t *x, const ep_curve *how, int32_t n, uint64_t *count) {
  const __m256i end = _mm256_set1_epi32(1 << 28);
  int32_t i = 0, fits = plain(how->in_shift) && how->out_shift >= 0 && plain(how->out_shift) && plain(how->id_shift);
  for (; i + 8 <= n && fits; i += 8) {
    __m512i v = wide(x + i);
    __m256i u = _mm512_cvtsepi64_epi32(shift_round(v, how->in_shift));
    __mmask8 left = how->left ? _mm256_cmplt_epi32_mask(u, _mm256_sub_epi32(_mm256_setzero_si256(), end)) : 0;
    __mmask8 right = how->right ? _mm256_cmpge_epi32_mask(u, end) : 0;
    put(y + i, _mm512_mask_mov_epi64(curve8(how->table, u, how->out_shift), left | right, shift_round(v, how->id_shift)), count);
  }
  for (; i < n; i++) y[i] = ep_sat32_count(ep_act_at(how, x[i]), count);
}

/* Eight centred numbers from i on; those from d on are 0. */
INLINE __m512i centered8(const ep_norm *how, const int32_t *x, int32_t i, int64_t sum) {
  __mmask8 there = (__mmask8)first((size_t)(how->d - i));
  __m512i v = some(x + i, there);
  if (!how->center) return v;
  return _mm512_maskz_sub_epi64(there, _mm512_mul_epi32(v, _mm512_set1_epi64(how->d)), _mm512_set1_epi64(sum));
}

AVX512 static void norm(int32_t *y, const int32_t *x, const ep_norm *how, uint64_t *count) {
  int32_t d = how->d;
  __m512i total = _mm512_setzero_si512(), most = total, squares = total;
  for (int32_t i = 0; i < d && how->center; i += 8)
    total = _mm512_add_epi64(total, some(x + i, (__mmask8)first((size_t)(d - i))));
  int64_t sum = _mm512_reduce_add_epi64(total);
  for (int32_t i = 0; i < d; i += 8) most = _mm512_max_epu64(most, _mm512_abs_epi64(centered8(how, x, i, sum)));
  int32_t pre = ep_norm_shift(d, _mm512_reduce_max_epu64(most));
  for (int32_t i = 0; i < d; i += 8) {
    __m512i c = shift_round(centered8(how, x, i, sum), pre);
    squares = _mm512_add_epi64(squares, _mm512_mul_epi32(c, c));
  }
  ep_scale r = ep_norm_scale(how, (uint64_t)_mm512_reduce_add_epi64(squares), pre);
  for (int32_t i = 0; i < d; i += 8) {
    int64_t product[8];
    __mmask8 there = (__mmask8)first((size_t)(d - i));
    __m512i gamma = some(how->gamma + i, there);
    __m512i v = _mm512_mul_epi32(shift_round(centered8(how, x, i, sum), pre), gamma);
    if (d - i >= 8 && requant8(y + i, v, _mm512_set1_epi32(r.m), _mm512_set1_epi64(r.e + how->out_shift - 33), count)) continue;
    store(product, v);
    for (int32_t k = 0; k < 8 && i + k < d; k++) y[i + k] = ep_requant(product[k], r.m, r.e + how->out_shift, count);
  }
  for (int32_t i = 0; i < d && how->beta; i++) y[i] = ep_sat32_count((int64_t)y[i] + how->beta[i], count);
}

AVX512 static void turn(int64_t *out, const int32_t *a, const int32_t *b, const int32_t *c, const int32_t *s, int32_t n) {
  for (int32_t j = 0; j < n; j += 8) {
    __mmask8 there = (__mmask8)first((size_t)(n - j));
    __m512i x = some(a + j, there), y = some(b + j, there), cosine = some(c + j, there), sine = some(s + j, there);
    _mm512_mask_storeu_epi64(out + j, there, _mm512_sub_epi64(_mm512_mul_epi32(x, cosine), _mm512_mul_epi32(y, sine)));
    _mm512_mask_storeu_epi64(out + n + j, there, _mm512_add_epi64(_mm512_mul_epi32(x, sine), _mm512_mul_epi32(y, cosine)));
  }
}

void ep_avx512_elements(ep_kernels *table) {
  table->add = add;
  table->mul = mul;
  table->act = act;
  table->norm = norm;
  table->turn = EP_KERNEL(EP_FEATURE_ROPE_HALF, turn);
}

#endif
