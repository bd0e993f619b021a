/* LINEAR with inputs in groups (a8g32) with dot products of bytes (SDOT). A group's product stays below 2^19, times d or g * d (below 2^23)
 * it is added to 64 bits; that of w4g32 is below 2^16, and with its scale and minimum below 2^31. */
#include "neon_dot.h"

#if defined(EP_HAS_NEON) && defined(DOTPROD)

/* The inputs of two groups as `bytes2` has the weights: with w4g32 the even columns of each, then the odd ones. */
INLINE int8x16x4_t take2(const int8_t *x, int form) {
  if (form != W4G32) return vld1q_s8_x4(x);
  int8x16x2_t a = vld2q_s8(x), b = vld2q_s8(x + 32);
  return (int8x16x4_t){{a.val[0], a.val[1], b.val[0], b.val[1]}};
}
INLINE int8x16x2_t take(const int8_t *x, int form) {
  return form == W4G32 ? vld2q_s8(x) : (int8x16x2_t){{vld1q_s8(x), vld1q_s8(x + 16)}};
}

INLINE int8x16_t low(int8x16_t w) { return vandq_s8(w, vdupq_n_s8(15)); }
INLINE int8x16_t high(int8x16_t w) { return vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(w), 4)); }

INLINE int8x16x4_t bytes2(const int8_t *w, int form) {
  if (form != W4G32) return vld1q_s8_x4(w);
  int8x16x2_t v = vld1q_s8_x2(w);
  return (int8x16x4_t){{low(v.val[0]), high(v.val[0]), low(v.val[1]), high(v.val[1])}};
}
INLINE int8x16x2_t bytes(const int8_t *w, int form) {
  if (form != W4G32) return (int8x16x2_t){{vld1q_s8(w), vld1q_s8(w + 16)}};
  int8x16_t v = vld1q_s8(w);
  return (int8x16x2_t){{low(v), high(v)}};
}

/* Dots times their factors, added to the two sums, which may be one. g and u: scales and minima (w8g32, w4g32), d: scales of the inputs,
 * totals: their sums. */
INLINE void add_scaled(int64x2_t *first, int64x2_t *second, int32x4_t dots, int32x4_t d, int32x4_t g, int32x4_t u, int32x4_t totals,
                       int form) {
  if (form == W8G32) d = vmulq_s32(g, d);
  if (form == W4G32) dots = vmlaq_s32(vmulq_s32(dots, g), totals, u);
  *first = vmlal_s32(*first, vget_low_s32(dots), vget_low_s32(d));
  *second = vmlal_high_s32(*second, dots, d);
}

/* ---- four rows and one token ------------------------------------------------------------------------------------ */

DOTPROD INLINE int32x4_t dot(int8x16_t w0, int8x16_t w1, int8x16_t x0, int8x16_t x1) {
  return vdotq_s32(vdotq_s32(vdupq_n_s32(0), w0, x0), w1, x1);
}

INLINE int32x4_t four_sums(const int32x4_t s[4]) { return vpaddq_s32(vpaddq_s32(s[0], s[1]), vpaddq_s32(s[2], s[3])); }

/* Four groups of a row make a vector. */
DOTPROD INLINE int32x4_t four_groups(const int8_t *w, const int8x16x4_t x[2], size_t size, int form) {
  int32x4_t s[4];
  UNROLL for (size_t k = 0; k < 2; k++) {
    int8x16x4_t v = bytes2(w + 2 * k * size, form);
    s[2 * k] = dot(v.val[0], v.val[1], x[k].val[0], x[k].val[1]);
    s[2 * k + 1] = dot(v.val[2], v.val[3], x[k].val[2], x[k].val[3]);
  }
  return four_sums(s);
}

/* Rows r to r + 3 of token t; those beyond the tile are its last one, and left out of acc. */
DOTPROD INLINE void four_rows(int64_t *acc, const ep_tile *tile, size_t r, size_t t, int form) {
  size_t groups = (size_t)tile->cols / 32, rest = (size_t)tile->rows - r, i = 0;
  const size_t step = form == W8 ? 0 : form == W4G32 ? 2 : 1, size = form == W4G32 ? 16 : 32;
  const int8_t *w[4], *x = tile->x8 + t * (size_t)tile->cols;
  const int16_t *g[4];
  const int32_t *d = tile->d + t * groups, *totals = sums_at(tile, t, 0, form);
  const int32x4_t none = vdupq_n_s32(0);
  int64x2_t sum[4], all[2] = {vdupq_n_s64(0), vdupq_n_s64(0)};
  w[0] = weights_at(tile, r, 0, form), g[0] = scales_at(tile, r, 0, form);
  UNROLL for (size_t n = 0; n < 4; n++) {
    size_t more = n < rest ? groups : 0;
    if (n) w[n] = w[n - 1] + more * size, g[n] = form == W8 ? NULL : g[n - 1] + more * step;
    sum[n] = vdupq_n_s64(0);
  }
  for (; i + 4 <= groups; i += 4, x += 128) {
    const int8x16x4_t v[2] = {take2(x, form), take2(x + 64, form)};
    int32x4_t by = vld1q_s32(d + i), total = form == W4G32 ? vld1q_s32(totals + i) : none;
    UNROLL for (size_t n = 0; n < 4; n++, w[n - 1] += 4 * size) {
      int32x4_t scale = none, minimum = none;
      if (form == W8G32) scale = vmovl_s16(vld1_s16(g[n] + i));
      if (form == W4G32) {
        int16x4x2_t both = vld2_s16(g[n] + 2 * i);
        scale = vmovl_s16(both.val[0]), minimum = vmovl_s16(both.val[1]);
      }
      add_scaled(&sum[n], &sum[n], four_groups(w[n], v, size, form), by, scale, minimum, total, form);
      PAUSE;
    }
  }
  for (; i < groups; i++, x += 32) { /* four rows make a vector */
    int8x16x2_t v = take(x, form);
    int32x4_t s[4], scale = none, minimum = none;
    UNROLL for (size_t n = 0; n < 4; n++, w[n - 1] += size) {
      int8x16x2_t b = bytes(w[n], form);
      s[n] = dot(b.val[0], b.val[1], v.val[0], v.val[1]);
    }
    if (form != W8) scale = (int32x4_t){g[0][i * step], g[1][i * step], g[2][i * step], g[3][i * step]};
    if (form == W4G32) minimum = (int32x4_t){g[0][2 * i + 1], g[1][2 * i + 1], g[2][2 * i + 1], g[3][2 * i + 1]};
    add_scaled(&all[0], &all[1], four_sums(s), vdupq_n_s32(d[i]), scale, minimum, form == W4G32 ? vdupq_n_s32(totals[i]) : none, form);
  }
  int64_t some[4], *to = acc + t * (size_t)tile->rows + r, *out = rest < 4 ? some : to;
  vst1q_s64(out, vaddq_s64(all[0], vpaddq_s64(sum[0], sum[1])));
  vst1q_s64(out + 2, vaddq_s64(all[1], vpaddq_s64(sum[2], sum[3])));
  for (size_t n = 0; n < rest && rest < 4; n++) to[n] = some[n];
}

/* ---- four rows and four tokens ---------------------------------------------------------------------------------- */

enum { BLOCK = 48 }; /* groups of a panel: it stays in the level 1 cache */

/* Of each group eight vectors of four columns of four rows, their scales and minima. */
typedef struct panel {
  int8_t w[BLOCK][128];
  int32_t g[BLOCK][4], u[BLOCK][4];
} panel;

INLINE void turn(panel *p, const ep_tile *tile, size_t r, size_t i, size_t n, int form) {
  for (size_t j = 0; j < n; j++) {
    int8x16x2_t w[4];
    UNROLL for (size_t k = 0; k < 4; k++) {
      const int16_t *g = scales_at(tile, r + k, i + j, form);
      w[k] = bytes(weights_at(tile, r + k, i + j, form), form);
      if (form != W8) p->g[j][k] = *g;
      if (form == W4G32) p->u[j][k] = g[1];
    }
    turn4(p->w[j], 16, w[0].val[0], w[1].val[0], w[2].val[0], w[3].val[0]);
    turn4(p->w[j] + 64, 16, w[0].val[1], w[1].val[1], w[2].val[1], w[3].val[1]);
  }
}

#define FOUR_COLUMNS(half, c) \
  UNROLL for (int k = 0; k < 4; k++) s[k] = vdotq_laneq_s32(s[k], w.val[c], v[k].val[half], c)
#define HALF(half)                                      \
  do {                                                  \
    int8x16x4_t w = vld1q_s8_x4(p->w[j] + 64 * (half)); \
    FOUR_COLUMNS(half, 0);                              \
    FOUR_COLUMNS(half, 1);                              \
    FOUR_COLUMNS(half, 2);                              \
    FOUR_COLUMNS(half, 3);                              \
  } while (0)

/* n groups from i on against tokens t to t + 3. */
DOTPROD INLINE void four_tokens(int64_t *acc, const ep_tile *tile, const panel *p, size_t r, size_t i, size_t n, size_t t, int form) {
  size_t cols = (size_t)tile->cols, groups = cols / 32, rows = (size_t)tile->rows;
  const int8_t *x = tile->x8 + t * cols + 32 * i;
  const int32_t *d = tile->d + t * groups + i, *totals = sums_at(tile, t, i, form);
  const int32x4_t none = vdupq_n_s32(0);
  int64_t *to = acc + t * rows + r;
  int64x2_t sum[4][2];
  UNROLL for (size_t k = 0; k < 4; k++) {
    sum[k][0] = i ? vld1q_s64(to + k * rows) : vdupq_n_s64(0);
    sum[k][1] = i ? vld1q_s64(to + k * rows + 2) : vdupq_n_s64(0);
  }
  for (size_t j = 0; j < n; j++, x += 32) {
    int32x4_t s[4], scale = form == W8 ? none : vld1q_s32(p->g[j]), minimum = form == W4G32 ? vld1q_s32(p->u[j]) : none;
    int8x16x2_t v[4];
    UNROLL for (size_t k = 0; k < 4; k++) s[k] = none, v[k] = take(x + k * cols, form);
    HALF(0);
    HALF(1);
    UNROLL for (size_t k = 0; k < 4; k++) {
      size_t at = k * groups + j;
      add_scaled(&sum[k][0], &sum[k][1], s[k], vdupq_n_s32(d[at]), scale, minimum, form == W4G32 ? vdupq_n_s32(totals[at]) : none, form);
    }
  }
  UNROLL for (size_t k = 0; k < 4; k++) {
    vst1q_s64(to + k * rows, sum[k][0]);
    vst1q_s64(to + k * rows + 2, sum[k][1]);
  }
}

DOTPROD INLINE void linear(int64_t *acc, const ep_tile *tile, int form) {
  size_t rows = (size_t)tile->rows, tokens = (size_t)tile->tokens, groups = (size_t)tile->cols / 32;
  panel *p = (panel *)tile->scratch;
  for (size_t r = 0; r < rows; r += 4) {
    size_t turned = r + 4 <= rows ? tokens & ~(size_t)3 : 0;
    for (size_t i = 0; i < groups && turned; i += BLOCK) {
      size_t n = groups - i < BLOCK ? groups - i : BLOCK;
      turn(p, tile, r, i, n, form);
      for (size_t t = 0; t < turned; t += 4) four_tokens(acc, tile, p, r, i, n, t, form);
    }
    for (size_t t = turned; t < tokens; t++) four_rows(acc, tile, r, t, form);
  }
}

DOTPROD static void linear8_w8(int64_t *acc, const ep_tile *tile) { linear(acc, tile, W8); }
DOTPROD static void linear8_w8g32(int64_t *acc, const ep_tile *tile) { linear(acc, tile, W8G32); }
DOTPROD static void linear8_w4g32(int64_t *acc, const ep_tile *tile) { linear(acc, tile, W4G32); }

void ep_neon_dot8(ep_kernels *table) {
  if (table->scratch < sizeof(panel)) table->scratch = sizeof(panel);
  table->linear8_w8 = EP_KERNEL(EP_FEATURE_IN8_W8, linear8_w8);
  table->linear8_w8g32 = EP_KERNEL(EP_FEATURE_IN8_W8G32, linear8_w8g32);
  table->linear8_w4g32 = EP_KERNEL(EP_FEATURE_IN8_W4G32, linear8_w4g32);
}

#else
typedef int ep_nothing; /* C has no empty files */
#endif
