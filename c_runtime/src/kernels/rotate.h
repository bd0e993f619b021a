/* Rotation of the heads of one token with vector instructions: what ep_rope_rotate_s16 and _s8 try first.
 *
 * Arguments are checked and heads and pairs above 0. Each returns how many pairs of every head it has rotated, from the first on:
 * a multiple of the vector's, or 0 where the processor, the build or the numbers do not allow it. The sums a * c - b * s and
 * a * s + b * c must fit in 32 bits and -s in 16: each looks for an |c| + |s| above EP_ROTATE_SUM first. amp_shift must be 32 or more,
 * since only the upper halves of the products are formed. */
#ifndef EP_ROTATE_H
#define EP_ROTATE_H

#include "edgepos.h"
#include "kernels.h"

enum {
  EP_ROTATE_BLOCK = 64,   /* pairs whose cos and sin are made ready for all heads at a time */
  EP_ROTATE_SUM = 49152   /* |c| + |s| up to here: |sums| <= 2^15 * 49152 = 1.5 * 2^30. Rows of any plan stay below 46342 */
};

#if defined(__GNUC__) && !defined(EDGEPOS_GENERIC_ONLY) && defined(__x86_64__) && defined(__SSE2__)
#define EP_ROTATE_VECTORS
int32_t ep_avx2_rotate_s16(int16_t *x, const int16_t *c, const int16_t *s, const ep_rotation *how);
int32_t ep_avx2_rotate_s8(int8_t *x, const int16_t *c, const int16_t *s, const ep_rotation *how);
#define EP_ROTATE_S16(x, c, s, how) ((how)->cpu & EP_CPU_AVX2 ? ep_avx2_rotate_s16(x, c, s, how) : 0)
#define EP_ROTATE_S8(x, c, s, how) ((how)->cpu & EP_CPU_AVX2 ? ep_avx2_rotate_s8(x, c, s, how) : 0)
#elif defined(EP_HAS_NEON)
#define EP_ROTATE_VECTORS
int32_t ep_neon_rotate_s16(int16_t *x, const int16_t *c, const int16_t *s, const ep_rotation *how);
int32_t ep_neon_rotate_s8(int8_t *x, const int16_t *c, const int16_t *s, const ep_rotation *how);
#define EP_ROTATE_S16(x, c, s, how) ((how)->cpu & EP_CPU_NEON ? ep_neon_rotate_s16(x, c, s, how) : 0)
#define EP_ROTATE_S8(x, c, s, how) ((how)->cpu & EP_CPU_NEON ? ep_neon_rotate_s8(x, c, s, how) : 0)
#else
#define EP_ROTATE_S16(x, c, s, how) 0
#define EP_ROTATE_S8(x, c, s, how) 0
#endif

#ifdef EP_ROTATE_VECTORS
static inline int ep_rotate_is_q15(const ep_rotation *how) { return how->amp_m == EP_Q15_AMP_M && how->amp_shift == EP_Q15_AMP_SHIFT; }
#endif

#endif
