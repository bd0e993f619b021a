/* Attention with Advanced SIMD. */
#include "neon.h"

#ifdef EP_HAS_NEON
#include "../constants.h"
#include "neon_round.h"

INLINE int32x4_t add_products(int32x4_t sum, int16x8_t a, int16x8_t b) {
  return vmlal_high_s16(vmlal_s16(sum, vget_low_s16(a), vget_low_s16(b)), a, b);
}

/* Sums of two products fit int32: 2 * 32639^2 < 2^31. */
INLINE int64x2_t add_pairs(int64x2_t acc, int16x8_t q, int16x8_t k) {
  return vpadalq_s32(acc, vmlal_high_s16(vmull_s16(vget_low_s16(q), vget_low_s16(k)), q, k));
}

/* Heads of 64 components: the query stays in registers. */
NEON static void score_64(int64_t *out, const int16_t *q, const int16_t *k, int32_t n) {
  int16x8_t v[8];
  UNROLL for (int i = 0; i < 8; i++) v[i] = vld1q_s16(q + 8 * i);
  for (int32_t j = 0; j < n; j++, k += 64) {
    int64x2_t acc = vdupq_n_s64(0);
    UNROLL for (int i = 0; i < 8; i++) acc = add_pairs(acc, v[i], vld1q_s16(k + 8 * i));
    out[j] = vaddvq_s64(acc);
  }
}

NEON static void score_kv16(int64_t *out, const int16_t *q, const int16_t *k, int32_t dim, int32_t n) {
  if (dim == 64) {
    score_64(out, q, k, n);
    return;
  }
  for (int32_t j = 0; j < n; j++, k += dim) {
    int64x2_t acc = vdupq_n_s64(0);
    int32_t i = 0;
    for (; i + 8 <= dim; i += 8) acc = add_pairs(acc, vld1q_s16(q + i), vld1q_s16(k + i));
    out[j] = vaddvq_s64(acc);
    for (; i < dim; i++) out[j] += (int64_t)(q[i] * k[i]);
  }
}

/* 512 products of int8 and |q| <= 32639 stay below 2^31. */
NEON static void score_kv8(int64_t *out, const int16_t *q, const int8_t *k, int32_t dim, int32_t n) {
  for (int32_t j = 0; j < n; j++, k += dim) {
    int32x4_t acc = vdupq_n_s32(0);
    int32_t i = 0, rest = 0;
    for (; i + 8 <= dim; i += 8) acc = add_products(acc, vld1q_s16(q + i), vmovl_s8(vld1_s8(k + i)));
    for (; i < dim; i++) rest += q[i] * k[i];
    out[j] = (int64_t)vaddvq_s32(acc) + rest;
  }
}

/* Eight components of v, which has elements of `bytes` bytes. */
INLINE int16x8_t eight(const int8_t *v, int bytes) {
  return bytes == 1 ? vmovl_s8(vld1_s8(v)) : vreinterpretq_s16_s8(vld1q_s8(v));
}

/* acc[0 ... 8 * vectors) of mix. */
INLINE void strip(int64_t *acc, const int32_t *p, const int8_t *v, size_t stride, int32_t n, int vectors, int bytes) {
  int64x2_t s[4][4];
  UNROLL for (int i = 0; i < vectors; i++)
    UNROLL for (int k = 0; k < 4; k++) s[i][k] = vld1q_s64(acc + 8 * i + 2 * k);
  for (int32_t j = 0; j < n; j++, v += stride) {
    UNROLL for (int i = 0; i < vectors; i++) {
      int16x8_t x = eight(v + 8 * i * bytes, bytes);
      int32x4_t a = vmovl_s16(vget_low_s16(x)), b = vmovl_high_s16(x);
      s[i][0] = vmlal_n_s32(s[i][0], vget_low_s32(a), p[j]);
      s[i][1] = vmlal_high_n_s32(s[i][1], a, p[j]);
      s[i][2] = vmlal_n_s32(s[i][2], vget_low_s32(b), p[j]);
      s[i][3] = vmlal_high_n_s32(s[i][3], b, p[j]);
    }
  }
  UNROLL for (int i = 0; i < vectors; i++)
    UNROLL for (int k = 0; k < 4; k++) vst1q_s64(acc + 8 * i + 2 * k, s[i][k]);
}

INLINE void mix(int64_t *acc, const int32_t *p, const int8_t *v, int32_t dim, int32_t n, int bytes) {
  size_t stride = (size_t)dim * (size_t)bytes, size = (size_t)bytes;
  int32_t i = 0;
  for (; i + 32 <= dim; i += 32) strip(acc + i, p, v + (size_t)i * size, stride, n, 4, bytes);
  for (; i + 8 <= dim; i += 8) strip(acc + i, p, v + (size_t)i * size, stride, n, 1, bytes);
  for (int32_t j = 0; j < n && i < dim; j++, v += stride)
    for (int32_t k = i; k < dim; k++) acc[k] += (int64_t)p[j] * (bytes == 1 ? v[k] : ((const int16_t *)(const void *)v)[k]);
}

NEON static void mix_kv16(int64_t *acc, const int32_t *p, const int16_t *v, int32_t dim, int32_t n) {
  mix(acc, p, (const int8_t *)v, dim, n, 2);
}

NEON static void mix_kv8(int64_t *acc, const int32_t *p, const int8_t *v, int32_t dim, int32_t n) { mix(acc, p, v, dim, n, 1); }

/* ---- between scores and mixing ---------------------------------------------------------------------------------- */

/* Four of requant(dot, m, shift - less); by: 32 - shift. */
INLINE int32x4_t scale4(const int64_t *dot, int32x4_t less, int32x4_t m, int32x4_t by, int32x4_t *odd) {
  int32x4_t n = vmaxq_s32(vaddq_s32(by, less), vdupq_n_s32(-100));
  *odd = vorrq_s32(*odd, vshrq_n_s32(vmvnq_s32(n), 31)); /* a shift below 33 */
  return requant4(vld1q_s64(dot), vld1q_s64(dot + 2), m, vmovl_s32(vget_low_s32(n)), vmovl_high_s32(n), odd);
}

NEON static void scale_kv16(int32_t *y, const int64_t *dot, const uint8_t *less, int32_t m, int32_t shift, int32_t n, uint64_t *count) {
  int32x4_t by_m = vdupq_n_s32(m), by = vdupq_n_s32(32 - shift);
  for (int32_t j = 0; j < n; j += 8) {
    int32x4_t odd = vdupq_n_s32(0);
    int32_t end = j + 8 < n ? j + 8 : n;
    if (end == j + 8 && m >= 0) {
      int16x8_t v = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(less + j)));
      int32x4_t a = scale4(dot + j, vmovl_s16(vget_low_s16(v)), by_m, by, &odd), b = scale4(dot + j + 4, vmovl_high_s16(v), by_m, by, &odd);
      if (put8(y + j, a, b, odd)) continue;
    }
    for (int32_t k = j; k < end; k++) y[k] = ep_requant(dot[k], m, shift - less[k], count);
  }
}

/* Below 2^38 before the last shift, so that it leaves nothing of distances of 40 * 2^16 and more. down: W - 38. */
INLINE int32x4_t exponential4(int32x4_t r, int32x4_t down) {
  int32x4_t first, second, f = vandq_s32(r, vdupq_n_s32(255)), rest = vsubq_s32(vdupq_n_s32(256), f);
  int32x4_t n = vmaxq_s32(vsubq_s32(down, vshrq_n_s32(r, 16)), vdupq_n_s32(-100));
  neighbours(&first, &second, EP_EXP2, vandq_s32(vshrq_n_s32(r, 8), vdupq_n_s32(255)));
  int64x2_t low = vmlal_s32(vmull_s32(vget_low_s32(first), vget_low_s32(rest)), vget_low_s32(second), vget_low_s32(f));
  int64x2_t high = vmlal_high_s32(vmull_high_s32(first, rest), second, f);
  low = vrshlq_s64(low, vmovl_s32(vget_low_s32(n))), high = vrshlq_s64(high, vmovl_high_s32(n));
  return vcombine_s32(vmovn_s64(low), vmovn_s64(high));
}

NEON static uint64_t exponentials(int32_t *p, int32_t n, int32_t W) {
  int32x4_t highest = vdupq_n_s32(INT32_MIN), down = vdupq_n_s32(W - 38);
  int32_t j = 0;
  for (; j + 4 <= n; j += 4) highest = vmaxq_s32(highest, vld1q_s32(p + j));
  int32_t most = vmaxvq_s32(highest);
  for (; j < n; j++)
    if (p[j] > most) most = p[j];
  uint64x2_t sums = vdupq_n_u64(0);
  for (j = 0; j + 4 <= n; j += 4) {
    int32x4_t v = exponential4(vqsubq_s32(vdupq_n_s32(most), vld1q_s32(p + j)), down);
    vst1q_s32(p + j, v);
    sums = vpadalq_u32(sums, vreinterpretq_u32_s32(v));
  }
  uint64_t sum = (uint64_t)vaddvq_s64(vreinterpretq_s64_u64(sums));
  for (; j < n; j++) {
    p[j] = ep_exp2_neg((int64_t)most - p[j], W);
    sum += (uint64_t)p[j];
  }
  return sum;
}

NEON static void align_kv16(int32_t *p, const uint8_t *s, int32_t most, int32_t n) {
  int32_t j = 0;
  for (; j + 8 <= n; j += 8) {
    int16x8_t by = vsubq_s16(vreinterpretq_s16_u16(vmovl_u8(vld1_u8(s + j))), vdupq_n_s16((int16_t)most));
    vst1q_s32(p + j, vrshlq_s32(vld1q_s32(p + j), vmovl_s16(vget_low_s16(by))));
    vst1q_s32(p + j + 4, vrshlq_s32(vld1q_s32(p + j + 4), vmovl_high_s16(by)));
  }
  for (; j < n; j++) p[j] = (int32_t)ep_rshift_round(p[j], most - s[j]);
}

void ep_neon_attention(ep_kernels *table) {
  table->score_kv16 = EP_KERNEL(EP_FEATURE_KV16, score_kv16);
  table->score_kv8 = EP_KERNEL(EP_FEATURE_KV8, score_kv8);
  table->mix_kv16 = EP_KERNEL(EP_FEATURE_KV16, mix_kv16);
  table->mix_kv8 = EP_KERNEL(EP_FEATURE_KV8, mix_kv8);
  table->scale_kv16 = EP_KERNEL(EP_FEATURE_KV16, scale_kv16);
  table->exponentials = exponentials;
  table->align_kv16 = EP_KERNEL(EP_FEATURE_KV16, align_kv16);
}

#else
typedef int ep_nothing; /* C has no empty files */
#endif
