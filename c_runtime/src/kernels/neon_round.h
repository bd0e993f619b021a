/* Rounding to int32 with Advanced SIMD, eight numbers at a time. What the vectors do not reach, saturations to be counted among it, they
 * leave to the functions of fixed.h: `odd` gathers bits of such lanes, and nothing is stored then. */
#ifndef EP_NEON_ROUND_H
#define EP_NEON_ROUND_H

#include "neon.h"

#ifdef EP_HAS_NEON
/* sat32 where that changes nothing. */
INLINE int32x4_t narrowed(int64x2_t a, int64x2_t b, int32x4_t *odd) {
  int32x4_t low = vuzp1q_s32(vreinterpretq_s32_s64(a), vreinterpretq_s32_s64(b));
  int32x4_t high = vuzp2q_s32(vreinterpretq_s32_s64(a), vreinterpretq_s32_s64(b));
  *odd = vorrq_s32(*odd, veorq_s32(high, vshrq_n_s32(low, 31)));
  return low;
}

/* Whether all lanes were in reach; they are stored then. */
INLINE int put8(int32_t *y, int32x4_t a, int32x4_t b, int32x4_t odd) {
  if (vmaxvq_u32(vreinterpretq_u32_s32(odd))) return 0;
  vst1q_s32(y, a);
  vst1q_s32(y + 4, b);
  return 1;
}

/* floor(a * m / 2^n + 1/2) for m >= 0 and n >= 33, of four; by: 32 - n, at least -128. The upper halves of the products are enough. */
INLINE int32x4_t requant4(int64x2_t a, int64x2_t b, int32x4_t m, int64x2_t by_a, int64x2_t by_b, int32x4_t *odd) {
  int32x4_t high = vuzp2q_s32(vreinterpretq_s32_s64(a), vreinterpretq_s32_s64(b));
  uint32x4_t low = vreinterpretq_u32_s32(vuzp1q_s32(vreinterpretq_s32_s64(a), vreinterpretq_s32_s64(b))), um = vreinterpretq_u32_s32(m);
  int64x2_t first = vreinterpretq_s64_u64(vshrq_n_u64(vmull_u32(vget_low_u32(low), vget_low_u32(um)), 32));
  int64x2_t second = vreinterpretq_s64_u64(vshrq_n_u64(vmull_high_u32(low, um), 32));
  first = vmlal_s32(first, vget_low_s32(high), vget_low_s32(m));
  second = vmlal_high_s32(second, high, m);
  return narrowed(vrshlq_s64(first, by_a), vrshlq_s64(second, by_b), odd);
}

/* A shift to the right by n, for vrshl, whose shifts have eight bits: with 100 all is gone. */
INLINE int64x2_t right(int32_t n) { return vdupq_n_s64(n > 100 ? -100 : -n); }

/* Entries i and i + 1 of a table for each of four i. */
INLINE void neighbours(int32x4_t *first, int32x4_t *second, const int32_t *table, int32x4_t i) {
  uint32x4_t at = vreinterpretq_u32_s32(vshlq_n_s32(i, 2)); /* bytes: the addresses need no shifts of their own */
  const char *from = (const char *)table;
#define NEIGHBOURS(k) vld1_s32((const int32_t *)(const void *)(from + vgetq_lane_u32(at, k)))
  int32x4_t a = vcombine_s32(NEIGHBOURS(0), NEIGHBOURS(1)), b = vcombine_s32(NEIGHBOURS(2), NEIGHBOURS(3));
#undef NEIGHBOURS
  *first = vuzp1q_s32(a, b), *second = vuzp2q_s32(a, b);
}
#endif

#endif
