/* LINEAR, rows of weights against one token. Included by files that define TARGET (an attribute), ROWS, the type x_group, and
 *   x_group take_x(const int16_t *x)                   the activations of a group, as `arrange` left them
 *   int32x4_t products(int8x16x2_t w, x_group x)       its 32 products, as four sums below 2^28 */
#ifndef EP_NEON_ROWS_H
#define EP_NEON_ROWS_H

#include "neon.h"

/* acc + sums times scales. */
INLINE int64x2_t add_scaled(int64x2_t acc, int32x4_t sums, int32x4_t g) {
  return vmlal_high_s32(vmlal_s32(acc, vget_low_s32(sums), vget_low_s32(g)), sums, g);
}

/* Scales of four groups; with w4g32 their minima times the sums of x are added to acc. */
INLINE int32x4_t scales4(int64x2_t *acc, const int16_t *g, const int32_t *sums, int form) {
  if (form != W4G32) return vmovl_s16(vld1_s16(g));
  int16x4x2_t both = vld2_s16(g);
  *acc = add_scaled(*acc, vld1q_s32(sums), vmovl_s16(both.val[1]));
  return vmovl_s16(both.val[0]);
}

/* Two numbers of this and of the next row. */
INLINE int32x4_t two_scales(const int16_t *g, const int16_t *next) {
  int32_t pair[2];
  __builtin_memcpy(&pair[0], g, 4);
  __builtin_memcpy(&pair[1], next, 4);
  return vmovl_s16(vreinterpret_s16_s32(vld1_s32(pair)));
}

/* Rows r to r + ROWS - 1 of token t; those beyond the tile are its last one, and left out of acc. Without
 * scales in the tile these are 1. */
TARGET INLINE void some_rows(int64_t *acc, const ep_tile *tile, size_t r, size_t t, int form) {
  static const int16_t ones[4] = {1, 1, 1, 1};
  size_t groups = (size_t)tile->cols / 32, i = 0, bytes = form == W4G32 ? 16 : 32, at = 0;
  const size_t step = form == W4G32 ? 2 : form == W8G32 && tile->g ? 1 : 0;
  const int8_t *w[ROWS];
  const int16_t *g[ROWS], *x = tile->x + t * (size_t)tile->cols;
  const int32_t *totals = sums_at(tile, t, 0, form);
  size_t rest = (size_t)tile->rows - r;
  int64_t *to = acc + t * (size_t)tile->rows + r;
  int64x2_t sum[ROWS];
  int64_t minima[ROWS];
  UNROLL for (size_t n = 0; n < ROWS; n++) sum[n] = vdupq_n_s64(0), minima[n] = 0;
  w[0] = weights_at(tile, r, 0, form), g[0] = step ? scales_at(tile, r, 0, form) : ones;
  UNROLL for (size_t n = 1; n < ROWS; n++) {
    size_t more = n < rest ? groups : 0;
    w[n] = w[n - 1] + more * bytes, g[n] = g[n - 1] + more * step;
  }
  for (; i + 4 <= groups; i += 4, at += 4 * step) {
    int32x4_t s[ROWS], pairs[ROWS]; /* added up by twos as soon as they are there: registers are few */
    UNROLL for (size_t k = 0; k < 4; k++, x += 32) {
      x_group a = take_x(x);
      UNROLL for (size_t n = 0; n < ROWS; n++) {
        int32x4_t now = products(weights(w[n] + k * bytes, form), a);
        if (k % 2 == 0) s[n] = now;
        if (k == 1) pairs[n] = vpaddq_s32(s[n], now);
        if (k == 3) pairs[n] = vpaddq_s32(pairs[n], vpaddq_s32(s[n], now));
      }
      PAUSE;
    }
    UNROLL for (size_t n = 0; n < ROWS; n++) {
      int32x4_t by = scales4(&sum[n], g[n] + at, form == W4G32 ? totals + i : NULL, form);
      sum[n] = add_scaled(sum[n], pairs[n], by);
      w[n] += 4 * bytes;
    }
  }
  if (form == W8G32 && ROWS % 2 == 0)
    for (; i + 2 <= groups; i += 2, at += 2 * step) { /* two groups of two rows make four sums */
      int32x4_t s[ROWS];
      UNROLL for (size_t k = 0; k < 2; k++, x += 32) {
        x_group a = take_x(x);
        UNROLL for (size_t n = 0; n < ROWS; n++, w[n - 1] += bytes) {
          int32x4_t now = products(weights(w[n], form), a);
          s[n] = k == 0 ? now : vpaddq_s32(s[n], now);
        }
      }
      UNROLL for (size_t n = 0; n + 1 < ROWS; n += 2) {
        int32x4_t by = two_scales(g[n] + at, g[n + 1] + at), both = vpaddq_s32(s[n], s[n + 1]);
        sum[n] = vmlal_s32(sum[n], vget_low_s32(both), vget_low_s32(by));
        sum[n + 1] = vmlal_high_s32(sum[n + 1], both, by);
      }
    }
  for (; i < groups; i++, x += 32, at += step) {
    x_group a = take_x(x);
    UNROLL for (size_t n = 0; n < ROWS; n++, w[n - 1] += bytes) {
      int32x4_t s = products(weights(w[n], form), a);
      sum[n] = add_scaled(sum[n], s, vdupq_n_s32(g[n][at]));
      if (form == W4G32) minima[n] += (int64_t)totals[i] * g[n][at + 1];
    }
  }
  UNROLL for (size_t n = 0; n < ROWS; n++)
    if (n < rest) to[n] = vaddvq_s64(sum[n]) + minima[n];
}

/* All rows of the tokens from t on. */
TARGET INLINE void by_rows(int64_t *acc, const ep_tile *tile, size_t from, int form) {
  for (size_t r = 0; r < (size_t)tile->rows; r += ROWS)
    for (size_t t = from; t < (size_t)tile->tokens; t++) some_rows(acc, tile, r, t, form);
}

#endif
