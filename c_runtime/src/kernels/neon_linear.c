/* LINEAR with Advanced SIMD: products of int16. */
#include "neon.h"

#ifdef EP_HAS_NEON
#define TARGET NEON
/* 32-bit ARM has half the registers. */
#define ROWS (EP_HAS_NEON == 64 ? 4 : 1)
#define GROUP 512

typedef int16x8x4_t x_group;

INLINE x_group take_x(const int16_t *x) { return load32(x); }

INLINE int32x4_t add_products(int32x4_t sum, int16x8_t w, int16x8_t x) {
  return vmlal_high_s16(vmlal_s16(sum, vget_low_s16(w), vget_low_s16(x)), w, x);
}

INLINE int32x4_t products(int8x16x2_t w, x_group x) {
  int16x8_t first = vmovl_s8(vget_low_s8(w.val[0]));
  int32x4_t sum = vmlal_high_s16(vmull_s16(vget_low_s16(first), vget_low_s16(x.val[0])), first, x.val[0]);
  sum = add_products(sum, vmovl_high_s8(w.val[0]), x.val[1]);
  sum = add_products(sum, vmovl_s8(vget_low_s8(w.val[1])), x.val[2]);
  return add_products(sum, vmovl_high_s8(w.val[1]), x.val[3]);
}

/* Eight columns of eight rows, turned and widened: a vector of each column. */
INLINE void turn8(int16_t *to, const int8x8_t w[8]) {
  UNROLL for (int odd = 0; odd < 2; odd++) { /* the even columns, then the odd ones */
    int16x4_t p[4];
    UNROLL for (int k = 0; k < 4; k++) p[k] = vreinterpret_s16_s8(vtrn_s8(w[2 * k], w[2 * k + 1]).val[odd]);
    UNROLL for (int next = 0; next < 2; next++) { /* by two columns more */
      int32x2_t a = vreinterpret_s32_s16(vtrn_s16(p[0], p[1]).val[next]), b = vreinterpret_s32_s16(vtrn_s16(p[2], p[3]).val[next]);
      int32x2x2_t q = vtrn_s32(a, b);
      vst1q_s16(to + 8 * (odd + 2 * next), vmovl_s8(vreinterpret_s8_s32(q.val[0])));
      vst1q_s16(to + 8 * (odd + 2 * next + 4), vmovl_s8(vreinterpret_s8_s32(q.val[1])));
    }
  }
}

/* panel: int16 [column][row]. */
INLINE void turn(int8_t *panel, const int8x16x2_t w[8]) {
  UNROLL for (int quarter = 0; quarter < 4; quarter++) {
    int8x8_t part[8];
    UNROLL for (int k = 0; k < 8; k++) {
      int8x16_t v = w[k].val[quarter / 2];
      part[k] = quarter % 2 ? vget_high_s8(v) : vget_low_s8(v);
    }
    turn8((int16_t *)(void *)panel + 64 * quarter, part);
  }
}

/* One column of eight rows times one activation of each token. */
#define COLUMN(c)                                                                                                       \
  do {                                                                                                                  \
    int16x8_t w = vld1q_s16(at + 8 * (c));                                                                              \
    UNROLL for (int k = 0; k < 4; k++) {                                                                                \
      s[k][0] = vmlal_laneq_s16(s[k][0], vget_low_s16(w), v[k], c);                                                     \
      s[k][1] = vmlal_high_laneq_s16(s[k][1], w, v[k], c);                                                              \
    }                                                                                                                   \
  } while (0)

INLINE void multiply(int32x4_t s[4][2], const int8_t *panel, const int16_t *x, size_t cols) {
  const int16_t *at = (const int16_t *)(const void *)panel;
  UNROLL for (int k = 0; k < 4; k++) s[k][0] = s[k][1] = vdupq_n_s32(0);
  UNROLL for (size_t c = 0; c < 32; c += 8, at += 64) {
    int16x8_t v[4];
    UNROLL for (size_t k = 0; k < 4; k++) v[k] = vld1q_s16(x + k * cols + c);
    COLUMN(0);
    COLUMN(1);
    COLUMN(2);
    COLUMN(3);
    PAUSE;
    COLUMN(4);
    COLUMN(5);
    COLUMN(6);
    COLUMN(7);
    PAUSE;
  }
}

#include "neon_panel.h"
#include "neon_rows.h"

INLINE void linear(int64_t *acc, const ep_tile *tile, int form) {
  size_t turned = (size_t)tile->tokens & ~(size_t)3;
  by_panels(acc, tile, turned, form);
  by_rows(acc, tile, turned, form);
}

NEON static void linear_w8g32(int64_t *acc, const ep_tile *tile) { linear(acc, tile, W8G32); }
NEON static void linear_w4g32(int64_t *acc, const ep_tile *tile) { linear(acc, tile, W4G32); }

static void linear_w8(int64_t *acc, const ep_tile *tile) {
  ep_tile own = *tile;
  own.g = NULL;
  linear_w8g32(acc, &own);
}

void ep_neon_linear(ep_kernels *table) {
  table->scratch = sizeof(panel);
  table->linear_w8 = EP_KERNEL(EP_FEATURE_W8, linear_w8);
  table->linear_w8g32 = EP_KERNEL(EP_FEATURE_W8G32, linear_w8g32);
  table->linear_w4g32 = EP_KERNEL(EP_FEATURE_W4G32, linear_w4g32);
}

#else
typedef int ep_nothing; /* C has no empty files */
#endif
