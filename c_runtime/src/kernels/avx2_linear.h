/* LINEAR with 256-bit vectors, compiled for AVX2 and for AVX-VNNI, which add_dots (avx2.h) tells apart.
 *
 * One token is read row by row: the rows lie one behind the other in memory and are read once. For more tokens a group of
 * eight rows is turned so that a vector holds a pair of columns of every row; it then serves all tokens of the tile, and
 * nothing has to be added across a vector. */
#include "avx2.h"

#if __STDC_HOSTED__
#include <string.h>
#else
void *memset(void *to, int value, size_t n);
#endif

/* The compiler shall reach four tokens from one address instead of keeping sixteen in registers. */
#define KEEP(p) __asm__("" : "+r"(p))

INLINE __m256i add_widened(__m256i acc, __m256i v) {
  acc = _mm256_add_epi64(acc, _mm256_cvtepi32_epi64(_mm256_castsi256_si128(v)));
  return _mm256_add_epi64(acc, _mm256_cvtepi32_epi64(_mm256_extracti128_si256(v, 1)));
}

/* ---- LINEAR, one row and one token ------------------------------------------------------------------------------ */

/* The 32 products of a group as eight sums of four, each below 2^24. */
INLINE __m256i group_w8(const int8_t *w, const int16_t *x) {
  return add_dots(_mm256_madd_epi16(widen(w), load(x)), widen(w + 16), load(x + 16));
}

INLINE __m256i group_w4(const int8_t *w, const int16_t *x) {
  __m256i c = row32(w, W4G32);
  __m256i low = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(c)), high = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(c, 1));
  return add_dots(_mm256_madd_epi16(low, load(x)), high, load(x + 16));
}

/* acc + the group's sums times its scale, which is in every dword of g. */
INLINE __m256i add_scaled(__m256i acc, __m256i sums, __m256i g) {
  sums = _mm256_add_epi32(sums, odd(sums));
  return _mm256_add_epi64(acc, _mm256_mul_epi32(sums, g));
}

/* Dword i of both halves everywhere. */
#define SPREAD(v, i) _mm256_shuffle_epi32(v, (i) * 0x55)

INLINE __m256i four_groups_w8(__m256i acc, const int8_t *w, __m256i g, const int16_t *x) {
  acc = add_scaled(acc, group_w8(w, x), SPREAD(g, 0));
  acc = add_scaled(acc, group_w8(w + 32, x + 32), SPREAD(g, 1));
  acc = add_scaled(acc, group_w8(w + 64, x + 64), SPREAD(g, 2));
  return add_scaled(acc, group_w8(w + 96, x + 96), SPREAD(g, 3));
}

AVX2 static int64_t row_w8(const int8_t *w, const int16_t *x, int32_t cols) {
  __m256i acc = _mm256_setzero_si256();
  while (cols > 0) { /* 64 groups of sums below 2^24 stay below 2^31 */
    int32_t n = cols < 2048 ? cols : 2048;
    __m256i sums = _mm256_setzero_si256();
    for (int32_t c = 0; c < n; c += 32) sums = _mm256_add_epi32(sums, group_w8(w + c, x + c));
    acc = add_widened(acc, sums);
    w += n, x += n, cols -= n;
  }
  return add_across64(acc);
}

AVX2 static int64_t row_w8g32(const int8_t *w, const int16_t *g, const int16_t *x, int32_t groups) {
  __m256i acc = _mm256_setzero_si256(), more = acc;
  for (; groups >= 8; groups -= 8, g += 8, w += 256, x += 256) {
    __m256i scales = _mm256_cvtepi16_epi32(load128(g));
    _mm_prefetch((const char *)w + AHEAD, _MM_HINT_T0);
    _mm_prefetch((const char *)w + AHEAD + 64, _MM_HINT_T0);
    _mm_prefetch((const char *)w + AHEAD + 128, _MM_HINT_T0);
    _mm_prefetch((const char *)w + AHEAD + 192, _MM_HINT_T0);
    acc = four_groups_w8(acc, w, _mm256_permute2x128_si256(scales, scales, 0x00), x);
    more = four_groups_w8(more, w + 128, _mm256_permute2x128_si256(scales, scales, 0x11), x + 128);
  }
  for (; groups > 0; groups--, g++, w += 32, x += 32) acc = add_scaled(acc, group_w8(w, x), _mm256_set1_epi32(*g));
  return add_across64(_mm256_add_epi64(acc, more));
}

AVX2 static int64_t row_w4g32(const int8_t *w, const int16_t *g, const int16_t *x, const int32_t *sums, int32_t groups) {
  __m256i acc = _mm256_setzero_si256(), more = acc;
  int64_t rest = 0;
  for (; groups >= 4; groups -= 4, g += 8, sums += 4, w += 64, x += 128) {
    __m256i scales = _mm256_cvtepi16_epi32(load128(g)); /* scale, minimum, ... */
    __m256i low = _mm256_permute2x128_si256(scales, scales, 0x00), high = _mm256_permute2x128_si256(scales, scales, 0x11);
    _mm_prefetch((const char *)w + AHEAD, _MM_HINT_T0);
    acc = _mm256_add_epi64(acc, _mm256_mul_epi32(odd(scales), _mm256_cvtepi32_epi64(load128(sums))));
    acc = add_scaled(acc, group_w4(w, x), SPREAD(low, 0));
    more = add_scaled(more, group_w4(w + 16, x + 32), SPREAD(low, 2));
    acc = add_scaled(acc, group_w4(w + 32, x + 64), SPREAD(high, 0));
    more = add_scaled(more, group_w4(w + 48, x + 96), SPREAD(high, 2));
  }
  for (; groups > 0; groups--, g += 2, sums++, w += 16, x += 32) {
    acc = add_scaled(acc, group_w4(w, x), _mm256_set1_epi32(g[0]));
    rest += (int64_t)*sums * g[1];
  }
  return add_across64(_mm256_add_epi64(acc, more)) + rest;
}

INLINE void row(int64_t *acc, const ep_tile *tile, int32_t r, int32_t t, int form) {
  size_t cols = (size_t)tile->cols, groups = cols / 32, at = (size_t)r;
  const int16_t *x = tile->x + (size_t)t * cols;
  int64_t *out = acc + (size_t)t * (size_t)tile->rows + at;
  if (form == W8) *out = row_w8(tile->w + at * cols, x, tile->cols);
  if (form == W8G32) *out = row_w8g32(tile->w + at * cols, tile->g + at * groups, x, (int32_t)groups);
  if (form == W4G32)
    *out = row_w4g32(tile->w + at * (cols / 2), tile->g + at * 2 * groups, x, tile->sums + (size_t)t * groups, (int32_t)groups);
}

/* ---- LINEAR, eight rows and several tokens ---------------------------------------------------------------------- */

/* One group of eight rows. panel: 32 bytes for each p < 8, pair of columns p of the rows 0, 4, 1, 5, 2, 6, 3, 7, then pair
 * p + 8: with this order the even dwords of a sum are rows 0 to 3 and the odd ones rows 4 to 7.
 * g, u: scales and minima of rows 0 to 3 and 4 to 7, one per 64 bits. */
typedef struct group8 {
  int8_t panel[256];
  __m256i g[2], u[2];
} group8;

/* Rows a, a + 4 and b, b + 4 as 64-bit pieces of pairs of columns: two each in lo[0], lo[1] (pairs 0 to 3) and hi (4 to 7). */
INLINE void weave(__m256i piece[4], const int8_t *w, size_t stride, size_t a, size_t b, int form) {
  __m256i a0 = row32(w + a * stride, form), a4 = row32(w + (a + 4) * stride, form);
  __m256i b0 = row32(w + b * stride, form), b4 = row32(w + (b + 4) * stride, form);
  __m256i a_lo = _mm256_unpacklo_epi16(a0, a4), a_hi = _mm256_unpackhi_epi16(a0, a4);
  __m256i b_lo = _mm256_unpacklo_epi16(b0, b4), b_hi = _mm256_unpackhi_epi16(b0, b4);
  piece[0] = _mm256_unpacklo_epi32(a_lo, b_lo), piece[1] = _mm256_unpackhi_epi32(a_lo, b_lo);
  piece[2] = _mm256_unpacklo_epi32(a_hi, b_hi), piece[3] = _mm256_unpackhi_epi32(a_hi, b_hi);
}

INLINE void turn(int8_t *panel, const int8_t *w, size_t stride, int form) {
  __m256i first[4], second[4];
  weave(first, w, stride, 0, 1, form);
  weave(second, w, stride, 2, 3, form);
  UNROLL for (int i = 0; i < 4; i++) {
    store(panel + 64 * i, _mm256_unpacklo_epi64(first[i], second[i]));
    store(panel + 64 * i + 32, _mm256_unpackhi_epi64(first[i], second[i]));
  }
}

INLINE __m256i every(const int16_t *g, size_t stride) {
  return _mm256_set_epi64x(g[3 * stride], g[2 * stride], g[stride], g[0]);
}

INLINE void take_group(group8 *to, const ep_tile *tile, size_t r, size_t i, int form) {
  size_t cols = (size_t)tile->cols, groups = cols / 32;
  if (form == W4G32) {
    const int16_t *g = tile->g + (r * groups + i) * 2;
    turn(to->panel, tile->w + r * (cols / 2) + i * 16, cols / 2, form);
    to->g[0] = every(g, 2 * groups), to->g[1] = every(g + 8 * groups, 2 * groups);
    to->u[0] = every(g + 1, 2 * groups), to->u[1] = every(g + 8 * groups + 1, 2 * groups);
    return;
  }
  turn(to->panel, tile->w + r * cols + i * 32, cols, form);
  const int16_t *g = tile->g + r * groups + i;
  to->g[0] = form == W8 ? _mm256_set1_epi64x(1) : every(g, groups);
  to->g[1] = form == W8 ? _mm256_set1_epi64x(1) : every(g + 4 * groups, groups);
}

INLINE __m256i pair_of(const int16_t *x) {
  int32_t pair;
  __builtin_memcpy(&pair, x, sizeof pair);
  return _mm256_set1_epi32(pair);
}

/* Group i of rows r to r + 7 against n <= 8 tokens from t on: added to acc. A sum of 32 products stays below 2^27. */
INLINE void block(int64_t *acc, const ep_tile *tile, const group8 *w, size_t r, size_t i, size_t t, int n, int form) {
  size_t cols = (size_t)tile->cols, rows = (size_t)tile->rows;
  const int16_t *x = tile->x + t * cols + 32 * i;
  int64_t *out = acc + t * rows + r;
  __m256i s[8];
  UNROLL for (int k = 0; k < n; k++) s[k] = _mm256_setzero_si256();
  for (size_t p = 0; p < 8; p++, x += 2) {
    __m256i a = widen(w->panel + 32 * p), b = widen(w->panel + 32 * p + 16);
    const int16_t *half[2] = {x, x + 4 * cols};
    KEEP(half[0]);
    KEEP(half[1]);
    UNROLL for (int k = 0; k < n; k++) {
      const int16_t *at = half[k / 4] + (size_t)(k % 4) * cols;
      s[k] = add_dots(s[k], a, pair_of(at));
      s[k] = add_dots(s[k], b, pair_of(at + 16));
    }
  }
  UNROLL for (int k = 0; k < n; k++, out += rows) {
    __m256i low = _mm256_mul_epi32(s[k], w->g[0]), high = _mm256_mul_epi32(odd(s[k]), w->g[1]);
    if (form == W4G32) {
      __m256i sum = _mm256_set1_epi32(tile->sums[(t + (size_t)k) * (cols / 32) + i]);
      low = _mm256_add_epi64(low, _mm256_mul_epi32(sum, w->u[0]));
      high = _mm256_add_epi64(high, _mm256_mul_epi32(sum, w->u[1]));
    }
    store(out, _mm256_add_epi64(load(out), low));
    store(out + 4, _mm256_add_epi64(load(out + 4), high));
  }
}

/* Eight rows from r on against all tokens of the tile. */
INLINE void rows8(int64_t *acc, const ep_tile *tile, size_t r, int form) {
  size_t groups = (size_t)tile->cols / 32, tokens = (size_t)tile->tokens;
  group8 w;
  for (size_t t = 0; t < tokens; t++) memset(acc + t * (size_t)tile->rows + r, 0, 8 * sizeof *acc);
  for (size_t i = 0; i < groups; i++) {
    size_t t = 0;
    take_group(&w, tile, r, i, form);
    for (; t + 8 <= tokens; t += 8) block(acc, tile, &w, r, i, t, 8, form);
    for (; t + 4 <= tokens; t += 4) block(acc, tile, &w, r, i, t, 4, form);
    for (; t < tokens; t++) block(acc, tile, &w, r, i, t, 1, form);
  }
}

INLINE void linear(int64_t *acc, const ep_tile *tile, int form) {
  int32_t r = 0;
  if (tile->tokens >= 4)
    for (; r + 8 <= tile->rows; r += 8) rows8(acc, tile, (size_t)r, form);
  for (; r < tile->rows; r++)
    for (int32_t t = 0; t < tile->tokens; t++) row(acc, tile, r, t, form);
}

AVX2 static void linear_w8(int64_t *acc, const ep_tile *tile) { linear(acc, tile, W8); }
AVX2 static void linear_w8g32(int64_t *acc, const ep_tile *tile) { linear(acc, tile, W8G32); }
AVX2 static void linear_w4g32(int64_t *acc, const ep_tile *tile) { linear(acc, tile, W4G32); }

static void put_linear(ep_kernels *table) {
  table->linear_w8 = EP_KERNEL(EP_FEATURE_W8, linear_w8);
  table->linear_w8g32 = EP_KERNEL(EP_FEATURE_W8G32, linear_w8g32);
  table->linear_w4g32 = EP_KERNEL(EP_FEATURE_W4G32, linear_w4g32);
}
