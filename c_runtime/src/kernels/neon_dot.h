/* What the kernels with dot products of bytes share.
 *
 * Inputs of 16 bits are taken as two signed bytes, x = high * 256 + low (|x| <= 32639): `arrange` puts those of a group of 32 where its numbers
 * were, 32 high bytes and then 32 low ones. Inputs in groups (a8g32) are bytes already.
 * Of four tokens, every 64 bytes of each are then exchanged: a quarter of what they have together takes the place of each, the first
 * sixteen bytes of all four that of the first one. The last group of an odd number of 8-bit ones stays as it is. */
#ifndef EP_NEON_DOT_H
#define EP_NEON_DOT_H

#include "neon.h"

#ifdef DOTPROD
/* Inputs of LINEAR. */
enum { IN8, IN16 };

/* Tokens from t on, which are not among four, all rows. Without scales these are 1. */
void ep_neon_dot_rows_w8(int64_t *acc, const ep_tile *tile, size_t t);
void ep_neon_dot_rows_w4(int64_t *acc, const ep_tile *tile, size_t t);
void ep_neon_dot8_rows_w8(int64_t *acc, const ep_tile *tile, size_t t);
void ep_neon_dot8_rows_w4(int64_t *acc, const ep_tile *tile, size_t t);
/* Adds the last group of every row, for the first tokens. */
void ep_neon_dot8_last_w8(int64_t *acc, const ep_tile *tile, size_t tokens);
void ep_neon_dot8_last_w4(int64_t *acc, const ep_tile *tile, size_t tokens);

/* 32 numbers: high bytes of columns 0 to 15 and 16 to 31, low ones. */
INLINE int8x16x4_t split(const int8_t *x) {
  int16x8x4_t v = vld1q_s16_x4((const int16_t *)(const void *)x);
  return (int8x16x4_t){{vrshrn_high_n_s16(vrshrn_n_s16(v.val[0], 8), v.val[1], 8), vrshrn_high_n_s16(vrshrn_n_s16(v.val[2], 8), v.val[3], 8),
                        vuzp1q_s8(vreinterpretq_s8_s16(v.val[0]), vreinterpretq_s8_s16(v.val[1])),
                        vuzp1q_s8(vreinterpretq_s8_s16(v.val[2]), vreinterpretq_s8_s16(v.val[3]))}};
}
#endif

#endif
