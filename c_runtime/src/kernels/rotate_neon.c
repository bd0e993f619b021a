/* Rotation with Advanced SIMD. The amplitude of 1/32767 needs no product, see rotate_avx2.c: its last step is a narrowing
 * shift that rounds and saturates. */
#include "rotate.h"
#include "neon.h"

#ifdef EP_HAS_NEON
enum { STEP = 8 }; /* pairs of a turn of the loops */

INLINE int16x4_t scaled(int32x4_t sum, const ep_rotation *how, int q15) {
  if (q15) return vqrshrn_n_s32(vsraq_n_s32(sum, vsraq_n_s32(sum, sum, 15), 15), 15);
  int64x2_t by = vdupq_n_s64(-how->amp_shift);
  int32x2_t m = vdup_n_s32(how->amp_m);
  int64x2_t low = vrshlq_s64(vmull_s32(vget_low_s32(sum), m), by), high = vrshlq_s64(vmull_s32(vget_high_s32(sum), m), by);
  return vqmovn_s32(vcombine_s32(vmovn_s64(low), vmovn_s64(high)));
}

/* |c| + |s| <= EP_ROTATE_SUM in all of the pairs. */
INLINE int fits(const int16_t *c, const int16_t *s, int32_t pairs) {
  uint16x8_t worst = vdupq_n_u16(0);
  for (int32_t j = 0; j < pairs; j += STEP) {
    uint16x8_t vc = vreinterpretq_u16_s16(vabsq_s16(vld1q_s16(c + j))), vs = vreinterpretq_u16_s16(vabsq_s16(vld1q_s16(s + j)));
    worst = vmaxq_u16(worst, vqaddq_u16(vc, vs));
  }
  return vmaxvq_u16(worst) <= EP_ROTATE_SUM;
}

/* Eight pairs, in place, within +-32767. */
INLINE void turned(int16x8_t *a, int16x8_t *b, int16x8_t c, int16x8_t s, const ep_rotation *how, int q15) {
  int32x4_t al = vmull_s16(vget_low_s16(*a), vget_low_s16(c)), ah = vmull_high_s16(*a, c);
  int32x4_t bl = vmull_s16(vget_low_s16(*a), vget_low_s16(s)), bh = vmull_high_s16(*a, s);
  al = vmlsl_s16(al, vget_low_s16(*b), vget_low_s16(s)), ah = vmlsl_high_s16(ah, *b, s);
  bl = vmlal_s16(bl, vget_low_s16(*b), vget_low_s16(c)), bh = vmlal_high_s16(bh, *b, c);
  int16x8_t least = vdupq_n_s16(-INT16_MAX);
  *a = vmaxq_s16(vcombine_s16(scaled(al, how, q15), scaled(ah, how, q15)), least);
  *b = vmaxq_s16(vcombine_s16(scaled(bl, how, q15), scaled(bh, how, q15)), least);
}

INLINE int8x8_t narrow(int16x8_t v) { return vmax_s8(vqmovn_s16(v), vdup_n_s8(-INT8_MAX)); }

INLINE void head16(int16_t *x, const int16_t *c, const int16_t *s, int32_t n, const ep_rotation *how, int half, int q15) {
  for (int32_t j = 0; j < n; j += STEP) {
    int16x8_t vc = vld1q_s16(c + j), vs = vld1q_s16(s + j);
    if (half) {
      int16x8_t a = vld1q_s16(x + j), b = vld1q_s16(x + how->pairs + j);
      turned(&a, &b, vc, vs, how, q15);
      vst1q_s16(x + j, a);
      vst1q_s16(x + how->pairs + j, b);
    } else {
      int16x8x2_t v = vld2q_s16(x + 2 * j);
      turned(&v.val[0], &v.val[1], vc, vs, how, q15);
      vst2q_s16(x + 2 * j, v);
    }
  }
}

INLINE void head8(int8_t *x, const int16_t *c, const int16_t *s, int32_t n, const ep_rotation *how, int half, int q15) {
  for (int32_t j = 0; j < n; j += STEP) {
    int16x8_t vc = vld1q_s16(c + j), vs = vld1q_s16(s + j);
    int8x8x2_t v = half ? (int8x8x2_t){{vld1_s8(x + j), vld1_s8(x + how->pairs + j)}} : vld2_s8(x + 2 * j);
    int16x8_t a = vmovl_s8(v.val[0]), b = vmovl_s8(v.val[1]);
    turned(&a, &b, vc, vs, how, q15);
    v = (int8x8x2_t){{narrow(a), narrow(b)}};
    if (half) {
      vst1_s8(x + j, v.val[0]);
      vst1_s8(x + how->pairs + j, v.val[1]);
    } else {
      vst2_s8(x + 2 * j, v);
    }
  }
}

#define ROTATE(name, type, head)                                                      \
  NEON int32_t name(type *x, const int16_t *c, const int16_t *s, const ep_rotation *how) { \
    int half = how->layout == EP_ROPE_HALF, q15 = ep_rotate_is_q15(how);              \
    int32_t n = how->pairs & -STEP;                                                   \
    if (!n || how->amp_shift < 32 || !fits(c, s, n)) return 0;                        \
    for (size_t h = 0; h < (size_t)how->heads; h++) {                                 \
      type *v = x + h * (size_t)how->stride;                                          \
      if (half && q15) head(v, c, s, n, how, 1, 1);                                   \
      if (half && !q15) head(v, c, s, n, how, 1, 0);                                  \
      if (!half && q15) head(v, c, s, n, how, 0, 1);                                  \
      if (!half && !q15) head(v, c, s, n, how, 0, 0);                                 \
    }                                                                                 \
    return n;                                                                         \
  }

ROTATE(ep_neon_rotate_s16, int16_t, head16)
ROTATE(ep_neon_rotate_s8, int8_t, head8)

#else
typedef int ep_nothing; /* C has no empty files */
#endif
