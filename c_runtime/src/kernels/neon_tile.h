/* LINEAR, four rows against four tokens at a time: the weights of the rows are turned once for all tokens of the tile. Included by files
 * that define TARGET (an attribute) and
 *   int8x16x4_t beside(int8x16x4_t v)          16 bytes of each of four tokens, in the order in which `multiply` takes them
 *   void turn(int8_t *panel, const int8x16_t w[4])   16 columns of four rows
 *   void multiply(int32x4_t s[4], int8x16x4_t w, int8x16x4_t v)   such columns times those of four tokens
 *   void by_token(int32x4_t s[4])              the sums of four rows for each token */
#ifndef EP_NEON_TILE_H
#define EP_NEON_TILE_H

#include "neon_dot.h"

enum { BLOCK = 48 }; /* groups of a panel: it stays in the level 1 cache */

typedef struct panel {
  int8_t w[BLOCK][128];
  int32_t g[BLOCK][4], u[BLOCK][4]; /* scales, minima */
} panel;

/* 64 bytes of each of four tokens, `bytes` apart, as `arrange` leaves them. */
INLINE void exchange(int8_t *x, size_t bytes, int in) {
  int8x16x4_t v[4];
  UNROLL for (size_t k = 0; k < 4; k++) v[k] = in == IN16 ? split(x + k * bytes) : vld1q_s8_x4(x + k * bytes);
  UNROLL for (size_t part = 0; part < 4; part++) {
    const int8x16x4_t all = {{v[0].val[part], v[1].val[part], v[2].val[part], v[3].val[part]}};
    vst1q_s8_x4(x + part * bytes, beside(all));
  }
}

/* Groups i to i + n - 1 of rows r to r + 3; rows beyond the tile are those of its last one. */
TARGET INLINE void turn_rows(panel *p, const ep_tile *tile, size_t r, size_t i, size_t n, int form) {
  const size_t groups = (size_t)tile->cols / 32, last = (size_t)tile->rows - 1, size = form == W4G32 ? 16 : 32, step = form == W4G32 ? 2 : tile->g ? 1 : 0;
  static const int16_t one = 1;
  const int8_t *w[4];
  const int16_t *g[4];
  UNROLL for (size_t k = 0; k < 4; k++) {
    size_t at = (r + k < last ? r + k : last) * groups + i;
    w[k] = tile->w + at * size, g[k] = tile->g ? tile->g + at * step : &one;
  }
  for (size_t j = 0; j < n; j++) {
    int8x16x2_t v[4];
    UNROLL for (size_t k = 0; k < 4; k++) {
      v[k] = weights(w[k] + j * size, form);
      p->g[j][k] = g[k][j * step];
      if (form == W4G32) p->u[j][k] = g[k][2 * j + 1];
    }
    UNROLL for (int half = 0; half < 2; half++) {
      const int8x16_t some[4] = {v[0].val[half], v[1].val[half], v[2].val[half], v[3].val[half]};
      turn(p->w[j] + 64 * half, some);
    }
  }
}

/* Where four tokens are read. */
typedef struct inputs {
  const int8_t *x[4];
  const int32_t *d, *totals; /* those of the tokens lie `apart` */
  size_t apart;
} inputs;

/* The sums of group j of the panel, and of the `odd` one of two groups of the inputs, times its factors. */
INLINE void add_group(int64x2_t sum[4][2], int32x4_t s[4], const panel *p, size_t j, const int32x2_t d[4], const inputs *from, int odd, int form, int in) {
  int32x4_t g = vld1q_s32(p->g[j]), u = g;
  if (form == W4G32) u = vld1q_s32(p->u[j]);
  by_token(s);
  UNROLL for (size_t k = 0; k < 4; k++) {
    int32x4_t by = in == IN16 ? g : odd ? vmulq_lane_s32(g, d[k], 1) : vmulq_lane_s32(g, d[k], 0);
    sum[k][0] = vmlal_s32(sum[k][0], vget_low_s32(s[k]), vget_low_s32(by));
    sum[k][1] = vmlal_high_s32(sum[k][1], s[k], by);
    if (form == W4G32) {
      int32_t total = from->totals[k * from->apart + (size_t)odd] * (in == IN16 ? 1 : from->d[k * from->apart + (size_t)odd]);
      sum[k][0] = vmlal_n_s32(sum[k][0], vget_low_s32(u), total);
      sum[k][1] = vmlal_high_n_s32(sum[k][1], u, total);
    }
  }
}

/* 64 bytes of each token: of group j of the panel or of groups j and j + 1, whose weights w are. */
TARGET INLINE void add_chunk(int64x2_t sum[4][2], const panel *p, size_t j, const int8_t **w, inputs *from, int form, int in) {
  int32x4_t s[4];
  int32x2_t d[4];
  UNROLL for (size_t k = 0; k < 4; k++) {
    s[k] = vdupq_n_s32(0);
    d[k] = in == IN8 ? vld1_s32(from->d + k * from->apart) : vdup_n_s32(0);
    if (in == IN8) SETTLE(d[k]); /* one load of two */
  }
  UNROLL for (int part = 0; part < 4; part++) {
    if (part == 2 && in == IN16) {
      ADVANCE(*w, -128); /* the weights once more, against the low bytes */
      UNROLL for (int k = 0; k < 4; k++) {
        s[k] = vshlq_n_s32(s[k], 8);
        SETTLE(s[k]);
      }
    }
    if (part == 2 && in == IN8) {
      add_group(sum, s, p, j, d, from, 0, form, in);
      UNROLL for (int k = 0; k < 4; k++) {
        SETTLE(sum[k][0]);
        SETTLE(sum[k][1]);
        s[k] = vdupq_n_s32(0);
      }
    }
    int8x16x4_t columns = vld1q_s8_x4(*w);
    ADVANCE(*w, 64);
    multiply(s, columns, vld1q_s8_x4(from->x[part]));
    ADVANCE(from->x[part], 64);
    PAUSE;
  }
  add_group(sum, s, p, in == IN8 ? j + 1 : j, d, from, in == IN8, form, in);
  if (in == IN8) from->d += 2;
  if (form == W4G32) from->totals += in == IN8 ? 2 : 1;
}

/* n groups against four tokens: added to four sums of each, which lie `stride` apart, if there are any. Of 8 bits, only pairs of groups. */
TARGET INLINE void four_tokens(int64_t *acc, size_t stride, int are, inputs from, const panel *p, size_t n, int form, int in) {
  const size_t step = in == IN8 ? 2 : 1;
  const int8_t *w = p->w[0];
  int64x2_t sum[4][2];
  UNROLL for (size_t k = 0; k < 4; k++) {
    sum[k][0] = are ? vld1q_s64(acc + k * stride) : vdupq_n_s64(0);
    sum[k][1] = are ? vld1q_s64(acc + k * stride + 2) : vdupq_n_s64(0);
  }
  for (size_t j = 0; j + step <= n; j += step) add_chunk(sum, p, j, &w, &from, form, in);
  UNROLL for (size_t k = 0; k < 4; k++, acc += stride) {
    vst1q_s64(acc, sum[k][0]);
    vst1q_s64(acc + 2, sum[k][1]);
  }
}

/* All rows of the first `tokens` tokens, a multiple of four. */
TARGET INLINE void by_panels(int64_t *acc, const ep_tile *tile, size_t tokens, int form, int in) {
  const size_t rows = (size_t)tile->rows, groups = (size_t)tile->cols / 32, size = in == IN8 ? 32 : 64, bytes = groups * size;
  panel *p = (panel *)tile->scratch;
  for (size_t r = 0; r < rows && tokens; r += 4)
    for (size_t i = 0; i < groups; i += BLOCK) {
      const size_t n = groups - i < BLOCK ? groups - i : BLOCK, rest = rows - r, stride = rest < 4 ? 4 : rows;
      const int8_t *x = (in == IN8 ? tile->x8 : (const int8_t *)tile->x) + i * size;
      const int32_t *d = in == IN8 ? tile->d + i : NULL, *totals = form == W4G32 ? tile->sums + i : NULL;
      int64_t *to = acc + r;
      turn_rows(p, tile, r, i, n, form);
      for (size_t t = tokens; t; t -= 4, x += 4 * bytes, to += 4 * rows) {
        const inputs from = {{x, x + bytes, x + 2 * bytes, x + 3 * bytes}, d, totals, groups};
        int64_t some[16], *out = rest < 4 ? some : to;
        if (rest < 4 && i)
          for (size_t k = 0; k < 16; k++) some[k] = k % 4 < rest ? to[k / 4 * rows + k % 4] : 0;
        four_tokens(out, stride, i != 0, from, p, n, form, in);
        for (size_t k = 0; k < 4 && rest < 4; k++)
          for (size_t h = 0; h < rest; h++) to[k * rows + h] = some[4 * k + h];
        if (in == IN8) d += 4 * groups;
        if (form == W4G32) totals += 4 * groups;
      }
    }
}

INLINE void arrange_bytes(int8_t *x, size_t bytes, size_t tokens, int in) {
  size_t t = 0;
  for (; t + 4 <= tokens; t += 4, x += 4 * bytes)
    for (size_t c = 0; c + 64 <= bytes; c += 64) exchange(x + c, bytes, in);
  for (size_t c = 0; c < (tokens - t) * bytes && in == IN16; c += 64) vst1q_s8_x4(x + c, split(x + c));
}

static void arrange(int16_t *x, int32_t cols, int32_t tokens) { arrange_bytes((int8_t *)x, (size_t)cols * 2, (size_t)tokens, IN16); }
static void arrange8(int8_t *x, int32_t cols, int32_t tokens) { arrange_bytes(x, (size_t)cols, (size_t)tokens, IN8); }

/* `last`, of the last group of an odd number. */
#define LINEAR(name, form, in, rows, last)                     \
  TARGET static void name(int64_t *acc, const ep_tile *tile) { \
    size_t turned = (size_t)tile->tokens & ~(size_t)3;         \
    by_panels(acc, tile, turned, form, in);                    \
    if (tile->cols / 32 % 2) last(acc, tile, turned);          \
    rows(acc, tile, turned);                                   \
  }

#define NONE(acc, tile, tokens) (void)0
LINEAR(linear_w8, W8G32, IN16, ep_neon_dot_rows_w8, NONE)
LINEAR(linear_w4, W4G32, IN16, ep_neon_dot_rows_w4, NONE)
LINEAR(linear8_w8, W8G32, IN8, ep_neon_dot8_rows_w8, ep_neon_dot8_last_w8)
LINEAR(linear8_w4, W4G32, IN8, ep_neon_dot8_rows_w4, ep_neon_dot8_last_w4)

static void set_linear(ep_kernels *table) {
  table->scratch = sizeof(panel);
  table->arrange = arrange;
  table->linear_w8 = EP_KERNEL(EP_FEATURE_W8, linear_w8); /* without scales these are 1 */
  table->linear_w8g32 = EP_KERNEL(EP_FEATURE_W8G32, linear_w8);
  table->linear_w4g32 = EP_KERNEL(EP_FEATURE_W4G32, linear_w4);
  table->arrange8 = EP_KERNEL_ANY(EP_FEATURES_IN8, arrange8);
  table->linear8_w8 = EP_KERNEL(EP_FEATURE_IN8_W8, linear8_w8);
  table->linear8_w8g32 = EP_KERNEL(EP_FEATURE_IN8_W8G32, linear8_w8);
  table->linear8_w4g32 = EP_KERNEL(EP_FEATURE_IN8_W4G32, linear8_w4);
}

#endif
