/* LINEAR for several tokens with matrix products of bytes (SMMLA): two rows by two tokens, eight columns at a time. A single token gains
 * nothing from them. */
#include "neon_dot.h"

#if defined(EP_HAS_NEON) && defined(I8MM)
#define TARGET I8MM
#define GROUP 256

INLINE int8x16_t lows(int8x16_t a, int8x16_t b) { return vreinterpretq_s8_s64(vzip1q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b))); }
INLINE int8x16_t highs(int8x16_t a, int8x16_t b) { return vreinterpretq_s8_s64(vzip2q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b))); }

/* panel: for each eight columns those of rows 0 and 1, 2 and 3, 4 and 5, 6 and 7. */
INLINE void turn(int8_t *panel, const int8x16x2_t w[8]) {
  UNROLL for (int k = 0; k < 4; k++)
    UNROLL for (int half = 0; half < 2; half++) {
      int8x16_t a = w[2 * k].val[half], b = w[2 * k + 1].val[half];
      vst1q_s8(panel + 128 * half + 16 * k, lows(a, b));
      vst1q_s8(panel + 128 * half + 64 + 16 * k, highs(a, b));
    }
}

I8MM INLINE void multiply(int32x4_t s[4][2], const int8_t *panel, const int16_t *x, size_t cols) {
  int32x4_t sum[4][2]; /* rows 2k and 2k + 1 by tokens 2m and 2m + 1 */
  UNROLL for (int k = 0; k < 4; k++) sum[k][0] = sum[k][1] = vdupq_n_s32(0);
  UNROLL for (size_t part = 0; part < 4; part++) {
    int8x16x4_t v = vld1q_s8_x4((const int8_t *)(x + part * cols));
    if (part == 2)
      UNROLL for (int k = 0; k < 4; k++) sum[k][0] = vshlq_n_s32(sum[k][0], 8), sum[k][1] = vshlq_n_s32(sum[k][1], 8);
    UNROLL for (size_t half = 0; half < 2; half++) {
      int8x16x4_t w = vld1q_s8_x4(panel + part % 2 * 128 + 64 * half);
      UNROLL for (int k = 0; k < 4; k++) {
        sum[k][0] = vmmlaq_s32(sum[k][0], w.val[k], v.val[half]);
        sum[k][1] = vmmlaq_s32(sum[k][1], w.val[k], v.val[2 + half]);
      }
    }
  }
  UNROLL for (int m = 0; m < 2; m++)
    UNROLL for (int half = 0; half < 2; half++) {
      s[2 * m][half] = vuzp1q_s32(sum[2 * half][m], sum[2 * half + 1][m]);
      s[2 * m + 1][half] = vuzp2q_s32(sum[2 * half][m], sum[2 * half + 1][m]);
    }
}

#include "neon_panel.h"

/* Two tokens go together: eight columns of both, then the next eight. */
INLINE int8x16x4_t beside(int8x16x4_t v) {
  return (int8x16x4_t){{lows(v.val[0], v.val[1]), highs(v.val[0], v.val[1]), lows(v.val[2], v.val[3]), highs(v.val[2], v.val[3])}};
}

#include "neon_bytes.h"

void ep_neon_i8mm(ep_kernels *table) { set_linear(table); }

#else
typedef int ep_nothing; /* C has no empty files */
#endif
