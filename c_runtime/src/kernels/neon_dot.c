/* LINEAR with dot products of bytes (SDOT): of the high bytes first; their sums times 256 are what those of the low ones are added to. */
#include "neon_dot.h"

#if defined(EP_HAS_NEON) && defined(DOTPROD)
#define TARGET DOTPROD
#define ROWS 4
#define GROUP 256

typedef int8x16x4_t x_group;

INLINE x_group take_x(const int16_t *x) { return vld1q_s8_x4((const int8_t *)x); }

DOTPROD INLINE int32x4_t products(int8x16x2_t w, x_group x) {
  int32x4_t high = vdotq_s32(vdotq_s32(vdupq_n_s32(0), w.val[0], x.val[0]), w.val[1], x.val[1]);
  return vdotq_s32(vdotq_s32(vshlq_n_s32(high, 8), w.val[0], x.val[2]), w.val[1], x.val[3]);
}

/* panel: for each four columns 16 bytes of rows 0 to 3, then of rows 4 to 7. */
INLINE void turn(int8_t *panel, const int8x16x2_t w[8]) {
  UNROLL for (size_t half = 0; half < 2; half++) {
    const int8x16x2_t *v = w + 4 * half;
    turn4(panel + 16 * half, 32, v[0].val[0], v[1].val[0], v[2].val[0], v[3].val[0]);
    turn4(panel + 16 * half + 128, 32, v[0].val[1], v[1].val[1], v[2].val[1], v[3].val[1]);
  }
}

/* Four columns of eight rows times those of each token. */
#define FOUR_COLUMNS(c)                                                   \
  do {                                                                    \
    int8x16_t w0 = vld1q_s8(at + 32 * (c)), w1 = vld1q_s8(at + 32 * (c) + 16); \
    UNROLL for (int k = 0; k < 4; k++) {                                  \
      s[k][0] = vdotq_laneq_s32(s[k][0], w0, v.val[k], c);                \
      s[k][1] = vdotq_laneq_s32(s[k][1], w1, v.val[k], c);                \
    }                                                                     \
  } while (0)

DOTPROD INLINE void multiply(int32x4_t s[4][2], const int8_t *panel, const int16_t *x, size_t cols) {
  UNROLL for (int k = 0; k < 4; k++) s[k][0] = s[k][1] = vdupq_n_s32(0);
  UNROLL for (size_t part = 0; part < 4; part++) {
    const int8_t *at = panel + part % 2 * 128;
    int8x16x4_t v = vld1q_s8_x4((const int8_t *)(x + part * cols));
    if (part == 2)
      UNROLL for (int k = 0; k < 4; k++) s[k][0] = vshlq_n_s32(s[k][0], 8), s[k][1] = vshlq_n_s32(s[k][1], 8);
    FOUR_COLUMNS(0);
    FOUR_COLUMNS(1);
    FOUR_COLUMNS(2);
    FOUR_COLUMNS(3);
    PAUSE;
  }
}

#include "neon_panel.h"
#include "neon_rows.h"

#define ROWS_OF(name, form) \
  DOTPROD void ep_neon_dot_rows_##name(int64_t *acc, const ep_tile *tile, size_t t) { by_rows(acc, tile, t, form); }

ROWS_OF(w8, W8)
ROWS_OF(w8g32, W8G32)
ROWS_OF(w4g32, W4G32)

INLINE int8x16x4_t beside(int8x16x4_t v) { return v; }

#include "neon_bytes.h"

void ep_neon_dot(ep_kernels *table) { set_linear(table); }

#else
typedef int ep_nothing; /* C has no empty files */
#endif
