/* What the kernels for Advanced SIMD share, on aarch64 and on 32-bit ARM. */
#ifndef EP_NEON_H
#define EP_NEON_H

#include "edgepos.h"
#include "kernels.h"

#ifdef EP_HAS_NEON
/* 32-bit programs start on processors without NEON too: only these functions are compiled for it. */
#ifdef __ARM_NEON
#define NEON
#elif defined(__clang__)
#define NEON __attribute__((target("neon")))
#else
#define NEON __attribute__((target("fpu=neon")))
#pragma GCC push_options
#pragma GCC target("fpu=neon")
#endif
#include <arm_neon.h>
#if !defined(__ARM_NEON) && !defined(__clang__)
#pragma GCC pop_options
#endif

#include "../fixed.h"

#define INLINE static inline __attribute__((always_inline, unused)) NEON
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

/* The compiler shall not load ahead beyond this: it would run out of registers. */
#define PAUSE __asm__ volatile("" ::: "memory")

/* What is done to a vector before this the compiler shall not mix with what comes after it. */
#define SETTLE(v) __asm__ volatile("" : "+w"(v))

/* Moves a pointer behind what was loaded; the compiler shall do it in the load, not count from where the loop began. */
#define ADVANCE(p, n)         \
  do {                        \
    (p) += (n);               \
    __asm__("" : "+r"(p)); \
  } while (0)

#if EP_HAS_NEON == 64
/* Clang before 16 knows these extensions only where the whole file may use them. */
#if !defined(__clang__) || __clang_major__ >= 16
#define DOTPROD __attribute__((target("arch=armv8.2-a+dotprod")))
#define I8MM __attribute__((target("arch=armv8.2-a+dotprod+i8mm")))
#else
#ifdef __ARM_FEATURE_DOTPROD
#define DOTPROD
#endif
#if defined(__ARM_FEATURE_DOTPROD) && defined(__ARM_FEATURE_MATMUL_INT8)
#define I8MM
#endif
#endif

#else
/* What 32-bit ARM has not, under the names of aarch64. */
INLINE int32x4_t vpaddq_s32(int32x4_t a, int32x4_t b) {
  return vcombine_s32(vpadd_s32(vget_low_s32(a), vget_high_s32(a)), vpadd_s32(vget_low_s32(b), vget_high_s32(b)));
}
INLINE int32_t vaddvq_s32(int32x4_t a) {
  int32x2_t s = vadd_s32(vget_low_s32(a), vget_high_s32(a));
  return vget_lane_s32(vpadd_s32(s, s), 0);
}
INLINE int64_t vaddvq_s64(int64x2_t a) { return vgetq_lane_s64(a, 0) + vgetq_lane_s64(a, 1); }
INLINE uint32_t vmaxvq_u32(uint32x4_t a) {
  uint32x2_t m = vmax_u32(vget_low_u32(a), vget_high_u32(a));
  return vget_lane_u32(vpmax_u32(m, m), 0);
}
INLINE int32_t vmaxvq_s32(int32x4_t a) {
  int32x2_t m = vmax_s32(vget_low_s32(a), vget_high_s32(a));
  return vget_lane_s32(vpmax_s32(m, m), 0);
}
INLINE uint16_t vmaxvq_u16(uint16x8_t a) {
  uint16x4_t m = vmax_u16(vget_low_u16(a), vget_high_u16(a));
  m = vpmax_u16(m, m);
  return vget_lane_u16(vpmax_u16(m, m), 0);
}
INLINE int16x8_t vmovl_high_s8(int8x16_t a) { return vmovl_s8(vget_high_s8(a)); }
INLINE int32x4_t vmovl_high_s16(int16x8_t a) { return vmovl_s16(vget_high_s16(a)); }
INLINE int64x2_t vmovl_high_s32(int32x4_t a) { return vmovl_s32(vget_high_s32(a)); }
INLINE int32x4_t vmull_high_s16(int16x8_t a, int16x8_t b) { return vmull_s16(vget_high_s16(a), vget_high_s16(b)); }
INLINE int64x2_t vmull_high_s32(int32x4_t a, int32x4_t b) { return vmull_s32(vget_high_s32(a), vget_high_s32(b)); }
INLINE uint64x2_t vmull_high_u32(uint32x4_t a, uint32x4_t b) { return vmull_u32(vget_high_u32(a), vget_high_u32(b)); }
INLINE int32x4_t vmlal_high_s16(int32x4_t s, int16x8_t a, int16x8_t b) { return vmlal_s16(s, vget_high_s16(a), vget_high_s16(b)); }
INLINE int32x4_t vmlsl_high_s16(int32x4_t s, int16x8_t a, int16x8_t b) { return vmlsl_s16(s, vget_high_s16(a), vget_high_s16(b)); }
INLINE int64x2_t vmlal_high_s32(int64x2_t s, int32x4_t a, int32x4_t b) { return vmlal_s32(s, vget_high_s32(a), vget_high_s32(b)); }
INLINE int64x2_t vmlal_high_n_s32(int64x2_t s, int32x4_t a, int32_t b) { return vmlal_n_s32(s, vget_high_s32(a), b); }
INLINE int16x8_t vmovn_high_s32(int16x4_t a, int32x4_t b) { return vcombine_s16(a, vmovn_s32(b)); }
INLINE int32x4_t vuzp1q_s32(int32x4_t a, int32x4_t b) { return vuzpq_s32(a, b).val[0]; }
INLINE int32x4_t vuzp2q_s32(int32x4_t a, int32x4_t b) { return vuzpq_s32(a, b).val[1]; }
INLINE int8x16_t vzip1q_s8(int8x16_t a, int8x16_t b) { return vzipq_s8(a, b).val[0]; }
INLINE int8x16_t vzip2q_s8(int8x16_t a, int8x16_t b) { return vzipq_s8(a, b).val[1]; }
#define vmull_laneq_s16(a, v, i) vmull_lane_s16(a, (i) < 4 ? vget_low_s16(v) : vget_high_s16(v), (i) & 3)
#define vmull_high_laneq_s16(a, v, i) vmull_laneq_s16(vget_high_s16(a), v, i)
#define vmlal_laneq_s16(s, a, v, i) vmlal_lane_s16(s, a, (i) < 4 ? vget_low_s16(v) : vget_high_s16(v), (i) & 3)
#define vmlal_high_laneq_s16(s, a, v, i) vmlal_laneq_s16(s, vget_high_s16(a), v, i)
#endif

INLINE int16x8x4_t load32(const int16_t *p) {
#if EP_HAS_NEON == 64
  return vld1q_s16_x4(p);
#else
  return (int16x8x4_t){{vld1q_s16(p), vld1q_s16(p + 8), vld1q_s16(p + 16), vld1q_s16(p + 24)}};
#endif
}

/* LINEAR by the form of the weights. */
enum { W8, W8G32, W4G32 };

/* The codes of w4g32 in the low and in the high four bits. */
INLINE int8x16x2_t nibbles(int8x16_t v) {
  return (int8x16x2_t){{vandq_s8(v, vdupq_n_s8(15)), vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(v), 4))}};
}

/* 32 weights of a group in the order of columns. */
INLINE int8x16x2_t weights(const int8_t *w, int form) {
  if (form != W4G32) return (int8x16x2_t){{vld1q_s8(w), vld1q_s8(w + 16)}};
  int8x16x2_t v = nibbles(vld1q_s8(w));
  return (int8x16x2_t){{vzip1q_s8(v.val[0], v.val[1]), vzip2q_s8(v.val[0], v.val[1])}};
}

/* A group of a row of the tile: its weights, its scale (with w4g32 a minimum follows), and the sum of a token's. */
INLINE const int8_t *weights_at(const ep_tile *tile, size_t r, size_t i, int form) {
  return tile->w + (r * ((size_t)tile->cols / 32) + i) * (form == W4G32 ? 16 : 32);
}
INLINE const int16_t *scales_at(const ep_tile *tile, size_t r, size_t i, int form) {
  return form == W8 ? NULL : tile->g + (r * ((size_t)tile->cols / 32) + i) * (form == W4G32 ? 2 : 1);
}
INLINE const int32_t *sums_at(const ep_tile *tile, size_t t, size_t i, int form) {
  return form == W4G32 ? tile->sums + t * ((size_t)tile->cols / 32) + i : NULL;
}

void ep_neon_linear(ep_kernels *table);
void ep_neon_dot(ep_kernels *table);
void ep_neon_i8mm(ep_kernels *table);
void ep_neon_attention(ep_kernels *table);
void ep_neon_elements(ep_kernels *table);
#endif

#endif
