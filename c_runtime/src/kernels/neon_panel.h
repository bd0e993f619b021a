/* LINEAR, eight rows against four tokens at a time: the weights of the rows are turned once for all tokens of the tile. Included by files
 * that define TARGET (an attribute), GROUP (bytes of a turned group), and
 *   void turn(int8_t *panel, const int8x16x2_t w[8])                                  the weights of a group of eight rows
 *   void multiply(int32x4_t s[4][2], const int8_t *panel, const int16_t *x, size_t cols)   a group against four tokens, cols apart and
 *                                                        as `arrange` left them: s[k] are the sums of token k for rows 0 to 3, 4 to 7 */
#ifndef EP_NEON_PANEL_H
#define EP_NEON_PANEL_H

#include "neon.h"

enum { BLOCK = 48 }; /* groups of a panel: it stays in the level 1 cache */

typedef struct panel {
  int8_t w[BLOCK][GROUP];
  int32_t g[BLOCK][8], u[BLOCK][8]; /* scales, minima */
} panel;

/* Groups i to i + n - 1 of rows r to r + 7; rows beyond the tile are those of its last one. */
TARGET INLINE void turn_rows(panel *p, const ep_tile *tile, size_t r, size_t i, size_t n, int form) {
  size_t last = (size_t)tile->rows - 1;
  for (size_t j = 0; j < n; j++) {
    int8x16x2_t w[8];
    UNROLL for (size_t k = 0; k < 8; k++) {
      size_t row = r + k < last ? r + k : last;
      const int16_t *g = form != W8 && tile->g ? scales_at(tile, row, i + j, form) : NULL;
      w[k] = weights(weights_at(tile, row, i + j, form), form);
      p->g[j][k] = g ? *g : 1;
      p->u[j][k] = form == W4G32 ? g[1] : 0;
    }
    turn(p->w[j], w);
  }
}

/* n groups from i on against tokens t to t + 3: added to eight sums of each, which lie `stride` apart. */
TARGET INLINE void four_tokens(int64_t *acc, size_t stride, const ep_tile *tile, const panel *p, size_t i, size_t n, size_t t, int form) {
  size_t cols = (size_t)tile->cols;
  const int16_t *x = tile->x + t * cols + 32 * i;
  const int32_t *totals = sums_at(tile, t, i, form);
  for (size_t j = 0; j < n; j++, x += 32) {
    int32x4_t s[4][2];
    multiply(s, p->w[j], x, cols);
    int32x4_t g[2] = {vld1q_s32(p->g[j]), vld1q_s32(p->g[j] + 4)}, u[2] = {vld1q_s32(p->u[j]), vld1q_s32(p->u[j] + 4)};
    UNROLL for (size_t k = 0; k < 4; k++) { /* the sums stay in memory: the registers are full */
      UNROLL for (int half = 0; half < 2; half++) {
        int64_t *to = acc + k * stride + 4 * half;
        int64x2_t v[2] = {vld1q_s64(to), vld1q_s64(to + 2)};
        v[0] = vmlal_s32(v[0], vget_low_s32(s[k][half]), vget_low_s32(g[half]));
        v[1] = vmlal_high_s32(v[1], s[k][half], g[half]);
        if (form == W4G32) {
          int32_t total = totals[k * (cols / 32) + j];
          v[0] = vmlal_n_s32(v[0], vget_low_s32(u[half]), total);
          v[1] = vmlal_high_n_s32(v[1], u[half], total);
        }
        vst1q_s64(to, v[0]);
        vst1q_s64(to + 2, v[1]);
      }
    }
  }
}

/* All rows of the first `tokens` tokens, a multiple of four. One copy of the code for all forms: what they share takes the time. */
TARGET static __attribute__((noinline)) void by_panels(int64_t *acc, const ep_tile *tile, size_t tokens, int form) {
  size_t rows = (size_t)tile->rows, groups = (size_t)tile->cols / 32;
  panel *p = (panel *)tile->scratch;
  for (size_t k = 0; k < tokens * rows; k++) acc[k] = 0;
  for (size_t r = 0; r < rows && tokens; r += 8)
    for (size_t i = 0; i < groups; i += BLOCK) {
      size_t n = groups - i < BLOCK ? groups - i : BLOCK;
      turn_rows(p, tile, r, i, n, form);
      for (size_t t = 0; t < tokens; t += 4) {
        int64_t some[4][8] = {{0}}, *to = acc + t * rows + r;
        int whole = r + 8 <= rows;
        four_tokens(whole ? to : some[0], whole ? rows : 8, tile, p, i, n, t, form);
        for (size_t k = 0; k < 4 && !whole; k++)
          for (size_t h = 0; r + h < rows; h++) to[k * rows + h] += some[k][h];
      }
    }
}

#endif
