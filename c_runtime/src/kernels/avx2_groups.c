/* LINEAR with inputs in groups (a8g32) with AVX2. vpmaddubsw multiplies unsigned bytes by signed ones: |w| by x with the sign of w, or
 * codes of four bits by x. Two products of w8 just fit its 16 bits (2 * 128 * 127), sixteen of w4g32 do. */
#include "avx2.h"

#ifdef EP_HAS_AVX2
INLINE __m256i add_words(__m256i v) { return _mm256_madd_epi16(v, _mm256_set1_epi16(1)); }

/* ---- one row and one token -------------------------------------------------------------------------------------- */

/* (w8: g may be NULL; w4g32: scale and minimum in turn) */
INLINE int64_t row(const int8_t *w, const int16_t *g, const int8_t *x, const int32_t *d, const int32_t *sums, size_t groups, int form) {
  __m256i acc = _mm256_setzero_si256();
  int64_t rest = 0;
  for (size_t i = 0; i < groups; i++, x += 32, w += form == W4G32 ? 16 : 32) {
    __m256i v = row32(w, form), input = load(x), s;
    int32_t factor = form == W8 ? d[i] : d[i] * (form == W4G32 ? g[2 * i] : g[i]);
    _mm_prefetch((const char *)w + AHEAD, _MM_HINT_T0);
    if (form == W4G32) {
      s = add_words(_mm256_maddubs_epi16(v, input));
      rest += (int64_t)(sums[i] * g[2 * i + 1]) * d[i];
    } else {
      s = add_words(_mm256_maddubs_epi16(_mm256_abs_epi8(v), _mm256_sign_epi8(input, v)));
    }
    acc = _mm256_add_epi64(acc, _mm256_mul_epi32(_mm256_add_epi32(s, odd(s)), _mm256_set1_epi32(factor)));
  }
  return add_across64(acc) + rest;
}

/* ---- eight rows and several tokens ------------------------------------------------------------------------------ */

enum { PANEL = 16 }; /* groups */

/* Eight rows of a group, four columns of each in a vector; the rows are 0, 4, 1, 5, 2, 6, 3, 7, so that the even dwords of a sum are
 * rows 0 to 3 and the odd ones rows 4 to 7. */
typedef struct group8 {
  int8_t w[8][32], size[8][32]; /* w8: |w| too */
  int32_t g[8], u[8];           /* scales, minima */
} group8;

INLINE void turn(group8 *to, const int8_t *w, size_t stride, int form) {
  __m256i r[8], half[2][4];
  UNROLL for (size_t k = 0; k < 8; k++) r[k] = row32(w + k * stride, form);
  UNROLL for (int k = 0; k < 4; k++) { /* rows 0 and 2, 4 and 6, 1 and 3, 5 and 7 */
    int a = k / 2 + k % 2 * 4;
    half[0][k] = _mm256_permute2x128_si256(r[a], r[a + 2], 0x20);
    half[1][k] = _mm256_permute2x128_si256(r[a], r[a + 2], 0x31);
  }
  UNROLL for (int h = 0; h < 2; h++) {
    __m256i *v = half[h], a = _mm256_unpacklo_epi32(v[0], v[1]), b = _mm256_unpacklo_epi32(v[2], v[3]);
    __m256i c = _mm256_unpackhi_epi32(v[0], v[1]), d = _mm256_unpackhi_epi32(v[2], v[3]);
    store(to->w[4 * h], _mm256_unpacklo_epi64(a, b));
    store(to->w[4 * h + 1], _mm256_unpackhi_epi64(a, b));
    store(to->w[4 * h + 2], _mm256_unpacklo_epi64(c, d));
    store(to->w[4 * h + 3], _mm256_unpackhi_epi64(c, d));
  }
  UNROLL for (int q = 0; q < 8 && form != W4G32; q++) store(to->size[q], _mm256_abs_epi8(load(to->w[q])));
}

INLINE void fill(group8 *to, const ep_tile *tile, size_t r, size_t i, size_t groups, int form) {
  size_t all = (size_t)tile->cols / 32, bytes = form == W4G32 ? 16 : 32, step = form == W4G32 ? 2 : 1;
  for (size_t k = 0; k < groups; k++, to++) {
    turn(to, tile->w + (r * all + i + k) * bytes, all * bytes, form);
    for (size_t row = 0; row < 8; row++) {
      size_t at = row % 4 * 2 + row / 4, from = ((r + row) * all + i + k) * step;
      to->g[at] = form == W8 ? 1 : tile->g[from];
      if (form == W4G32) to->u[at] = tile->g[from + 1];
    }
  }
}

INLINE __m256i four_at(const int8_t *p) {
  int32_t four;
  __builtin_memcpy(&four, p, sizeof four);
  return _mm256_set1_epi32(four);
}

/* The dot products of eight rows with a group of one token. */
INLINE void dot(__m256i *s, const group8 *w, const int8_t *x, size_t cols, int n, int form) {
  UNROLL for (int k = 0; k < n; k++) s[k] = _mm256_setzero_si256();
  for (int q = 0; q < 8; q++, x += 4) {
    __m256i v = load(w->w[q]), size = form == W4G32 ? v : load(w->size[q]);
    UNROLL for (int k = 0; k < n; k++) {
      __m256i four = four_at(x + (size_t)k * cols);
      if (form == W4G32) s[k] = _mm256_add_epi16(s[k], _mm256_maddubs_epi16(v, four));
      else s[k] = _mm256_add_epi32(s[k], add_words(_mm256_maddubs_epi16(size, _mm256_sign_epi8(four, v))));
    }
  }
  UNROLL for (int k = 0; k < n && form == W4G32; k++) s[k] = add_words(s[k]);
}

/* The groups of a panel, of which the first is i, against n <= 4 tokens from t on; out is of the panel's first row. */
INLINE void block(int64_t *out, const ep_tile *tile, const group8 *w, size_t i, size_t groups, size_t t, int n, int form) {
  size_t cols = (size_t)tile->cols, rows = (size_t)tile->rows, all = cols / 32, at = t * all + i;
  __m256i low[4], high[4], s[4];
  UNROLL for (int k = 0; k < n; k++) {
    low[k] = i ? load(out + (size_t)k * rows) : _mm256_setzero_si256();
    high[k] = i ? load(out + (size_t)k * rows + 4) : _mm256_setzero_si256();
  }
  for (size_t g = 0; g < groups; g++, w++) {
    dot(s, w, tile->x8 + 32 * (at + g), cols, n, form);
    __m256i scales = load(w->g);
    UNROLL for (int k = 0; k < n; k++) {
      size_t of = at + g + (size_t)k * all;
      __m256i d = _mm256_set1_epi32(tile->d[of]), even, uneven;
      if (form == W4G32) { /* a sum below 2^16 times its scale and one below 2^12 times its minimum: together below 2^31 */
        __m256i sum = _mm256_mullo_epi32(_mm256_set1_epi32(tile->sums[of]), load(w->u));
        sum = _mm256_add_epi32(sum, _mm256_mullo_epi32(s[k], scales));
        even = _mm256_mul_epi32(sum, d), uneven = _mm256_mul_epi32(odd(sum), d);
      } else {
        __m256i scaled = _mm256_mullo_epi32(s[k], d);
        even = _mm256_mul_epi32(scaled, scales), uneven = _mm256_mul_epi32(odd(scaled), odd(scales));
      }
      low[k] = _mm256_add_epi64(low[k], even);
      high[k] = _mm256_add_epi64(high[k], uneven);
    }
  }
  UNROLL for (int k = 0; k < n; k++) {
    store(out + (size_t)k * rows, low[k]);
    store(out + (size_t)k * rows + 4, high[k]);
  }
}

INLINE void rows8(int64_t *acc, const ep_tile *tile, size_t r, int form) {
  size_t all = (size_t)tile->cols / 32, tokens = (size_t)tile->tokens, rows = (size_t)tile->rows;
  group8 *w = (group8 *)tile->scratch;
  for (size_t i = 0; i < all; i += PANEL) {
    size_t groups = all - i < PANEL ? all - i : PANEL, t = 0;
    fill(w, tile, r, i, groups, form);
    for (; t + 4 <= tokens; t += 4) block(acc + t * rows + r, tile, w, i, groups, t, 4, form);
    for (; t < tokens; t++) block(acc + t * rows + r, tile, w, i, groups, t, 1, form);
  }
}

INLINE void linear(int64_t *acc, const ep_tile *tile, int form) {
  size_t r = 0, rows = (size_t)tile->rows, all = (size_t)tile->cols / 32;
  if (tile->tokens >= 4)
    for (; r + 8 <= rows; r += 8) rows8(acc, tile, r, form);
  for (; r < rows; r++) {
    const int8_t *w = tile->w + r * all * (form == W4G32 ? 16 : 32);
    const int16_t *g = form == W8 ? NULL : tile->g + r * all * (form == W4G32 ? 2 : 1);
    for (size_t t = 0; t < (size_t)tile->tokens; t++)
      acc[t * rows + r] = row(w, g, tile->x8 + t * all * 32, tile->d + t * all, tile->sums + t * all, all, form);
  }
}

AVX2 static void linear8_w8(int64_t *acc, const ep_tile *tile) { linear(acc, tile, W8); }
AVX2 static void linear8_w8g32(int64_t *acc, const ep_tile *tile) { linear(acc, tile, W8G32); }
AVX2 static void linear8_w4g32(int64_t *acc, const ep_tile *tile) { linear(acc, tile, W4G32); }

/* ---- the inputs ------------------------------------------------------------------------------------------------- */

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
  table->linear8_w8 = EP_KERNEL(EP_FEATURE_IN8_W8, linear8_w8);
  table->linear8_w8g32 = EP_KERNEL(EP_FEATURE_IN8_W8G32, linear8_w8g32);
  table->linear8_w4g32 = EP_KERNEL(EP_FEATURE_IN8_W4G32, linear8_w4g32);
  size_t scratch = (PANEL * sizeof(group8) + 63) & ~(size_t)63;
  if (table->scratch < scratch) table->scratch = scratch;
}

#else

void ep_avx2_groups(ep_kernels *table, uint32_t cpu) {
  (void)table;
  (void)cpu;
}

#endif
