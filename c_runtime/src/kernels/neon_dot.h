/* What the kernels with dot products of bytes share. They take |x| <= 32639 as two signed bytes, x = high * 256 + low: `arrange` puts those of a
 * group of 32 where its numbers were, 32 high bytes and then 32 low ones. Of four tokens, a quarter of what they have together takes the
 * place of each: the high bytes of columns 0 to 15, then of 16 to 31, then the low ones. */
#ifndef EP_NEON_DOT_H
#define EP_NEON_DOT_H

#include "neon.h"

#ifdef DOTPROD
/* Tokens from t on, with the layout of a single one each. */
void ep_neon_dot_rows_w8(int64_t *acc, const ep_tile *tile, size_t t);
void ep_neon_dot_rows_w8g32(int64_t *acc, const ep_tile *tile, size_t t);
void ep_neon_dot_rows_w4g32(int64_t *acc, const ep_tile *tile, size_t t);

/* 32 numbers: high bytes of columns 0 to 15 and 16 to 31, low ones. */
INLINE int8x16x4_t split(const int16_t *x) {
  int16x8x4_t v = vld1q_s16_x4(x);
  return (int8x16x4_t){{vrshrn_high_n_s16(vrshrn_n_s16(v.val[0], 8), v.val[1], 8), vrshrn_high_n_s16(vrshrn_n_s16(v.val[2], 8), v.val[3], 8),
                        vuzp1q_s8(vreinterpretq_s8_s16(v.val[0]), vreinterpretq_s8_s16(v.val[1])),
                        vuzp1q_s8(vreinterpretq_s8_s16(v.val[2]), vreinterpretq_s8_s16(v.val[3]))}};
}

/* Four rows of sixteen columns: four vectors of four bytes of each row. */
INLINE void turn4(int8_t *to, size_t apart, int8x16_t a, int8x16_t b, int8x16_t c, int8x16_t d) {
  int32x4_t p = vreinterpretq_s32_s8(a), q = vreinterpretq_s32_s8(b), u = vreinterpretq_s32_s8(c), v = vreinterpretq_s32_s8(d);
  int64x2_t even0 = vreinterpretq_s64_s32(vtrn1q_s32(p, q)), odd0 = vreinterpretq_s64_s32(vtrn2q_s32(p, q));
  int64x2_t even1 = vreinterpretq_s64_s32(vtrn1q_s32(u, v)), odd1 = vreinterpretq_s64_s32(vtrn2q_s32(u, v));
  vst1q_s8(to, vreinterpretq_s8_s64(vtrn1q_s64(even0, even1)));
  vst1q_s8(to + apart, vreinterpretq_s8_s64(vtrn1q_s64(odd0, odd1)));
  vst1q_s8(to + 2 * apart, vreinterpretq_s8_s64(vtrn2q_s64(even0, even1)));
  vst1q_s8(to + 3 * apart, vreinterpretq_s8_s64(vtrn2q_s64(odd0, odd1)));
}
#endif

#endif
