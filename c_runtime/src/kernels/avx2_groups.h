/* LINEAR with inputs in groups (a8g32) with 256-bit vectors, compiled for AVX2 and for AVX-VNNI.
 *
 * Of AVX2, vpmaddubsw multiplies unsigned bytes by signed ones: |w| by x with the sign of w, or codes of four bits by x. Two products of
 * w8 just fit its 16 bits (2 * 128 * 127), sixteen of w4g32 do. vpdpbusd adds four products in 32 bits: 128 is added to w and taken away
 * again as 128 * (sum of x). */
#include "avx2.h"

#ifdef VNNI
enum { LIFT = 128 }; /* of weights of eight bits */

INLINE __m256i lifted(__m256i w) { return _mm256_xor_si256(w, _mm256_set1_epi8(-128)); }

/* Eight numbers that add up to the dot product with x, whose numbers add up to `sum`. */
INLINE __m256i dot32(__m256i w, __m256i x, int32_t sum, int form) {
  if (form == W4G32) return VNNI(dpbusd)(_mm256_setzero_si256(), w, x);
  return VNNI(dpbusd)(_mm256_zextsi128_si256(_mm_cvtsi32_si128(-LIFT * sum)), lifted(w), x);
}
#else
INLINE __m256i add_words(__m256i v) { return _mm256_madd_epi16(v, _mm256_set1_epi16(1)); }

INLINE __m256i dot32(__m256i w, __m256i x, int32_t sum, int form) {
  (void)sum;
  return add_words(form == W4G32 ? _mm256_maddubs_epi16(w, x) : _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)));
}
#endif

/* ---- one row and one token -------------------------------------------------------------------------------------- */

/* (w8: g may be NULL; w4g32: scale and minimum in turn) */
INLINE int64_t row(const int8_t *w, const int16_t *g, const int8_t *x, const int32_t *d, const int32_t *sums, size_t groups, int form) {
  __m256i acc = _mm256_setzero_si256();
  int64_t rest = 0;
  for (size_t i = 0; i < groups; i++, x += 32, w += form == W4G32 ? 16 : 32) {
    __m256i s = dot32(row32(w, form), load(x), sums[i], form);
    int32_t factor = form == W8 ? d[i] : d[i] * (form == W4G32 ? g[2 * i] : g[i]);
    _mm_prefetch((const char *)w + AHEAD, _MM_HINT_T0);
    if (form == W4G32) rest += (int64_t)(sums[i] * g[2 * i + 1]) * d[i];
    acc = _mm256_add_epi64(acc, _mm256_mul_epi32(_mm256_add_epi32(s, odd(s)), _mm256_set1_epi32(factor)));
  }
  return add_across64(acc) + rest;
}

/* ---- eight rows and several tokens ------------------------------------------------------------------------------ */

enum { PANEL = 16 }; /* groups */

/* Eight rows of a group, four columns of each in a vector; the rows are 0, 4, 1, 5, 2, 6, 3, 7, so that the even dwords of a sum are
 * rows 0 to 3 and the odd ones rows 4 to 7. */
typedef struct group8 {
  int8_t w[8][32], size[8][32]; /* of w8 |w| too, or LIFT is added */
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
#ifdef VNNI
  UNROLL for (int q = 0; q < 8 && form != W4G32; q++) store(to->w[q], lifted(load(to->w[q])));
#else
  UNROLL for (int q = 0; q < 8 && form != W4G32; q++) store(to->size[q], _mm256_abs_epi8(load(to->w[q])));
#endif
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

/* The dot products of eight rows with a group of n tokens, which lie cols apart; sums: theirs, `all` apart. */
INLINE void dot(__m256i *s, const group8 *w, const int8_t *x, size_t cols, const int32_t *sums, size_t all, int n, int form) {
#ifdef VNNI
  UNROLL for (int k = 0; k < n; k++) s[k] = _mm256_set1_epi32(form == W4G32 ? 0 : -LIFT * sums[(size_t)k * all]);
  for (int q = 0; q < 8; q++, x += 4) {
    __m256i v = load(w->w[q]);
    UNROLL for (int k = 0; k < n; k++) s[k] = VNNI(dpbusd)(s[k], v, four_at(x + (size_t)k * cols));
  }
#else
  (void)sums;
  (void)all;
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
#endif
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
    dot(s, w, tile->x8 + 32 * (at + g), cols, tile->sums + at + g, all, n, form);
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

static void put_groups(ep_kernels *table) {
  const size_t scratch = (PANEL * sizeof(group8) + 63) & ~(size_t)63;
  table->linear8_w8 = EP_KERNEL(EP_FEATURE_IN8_W8, linear8_w8);
  table->linear8_w8g32 = EP_KERNEL(EP_FEATURE_IN8_W8G32, linear8_w8g32);
  table->linear8_w4g32 = EP_KERNEL(EP_FEATURE_IN8_W4G32, linear8_w4g32);
  if (table->scratch < scratch) table->scratch = scratch;
}
