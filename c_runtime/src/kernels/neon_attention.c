/* Attention with Advanced SIMD. */
#include "neon.h"

#ifdef EP_HAS_NEON
INLINE int32x4_t add_products(int32x4_t sum, int16x8_t a, int16x8_t b) {
  return vmlal_high_s16(vmlal_s16(sum, vget_low_s16(a), vget_low_s16(b)), a, b);
}

/* Sums of two products fit int32: 2 * 32639^2 < 2^31. */
NEON static void score_kv16(int64_t *out, const int16_t *q, const int16_t *k, int32_t dim, int32_t n) {
  for (int32_t j = 0; j < n; j++, k += dim) {
    int64x2_t acc = vdupq_n_s64(0);
    int32_t i = 0;
    for (; i + 8 <= dim; i += 8) acc = vpadalq_s32(acc, add_products(vdupq_n_s32(0), vld1q_s16(q + i), vld1q_s16(k + i)));
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

INLINE int32_t mix(int64_t *acc, const int32_t *p, const int8_t *v, int32_t dim, int32_t n, int bytes) {
  size_t stride = (size_t)dim * (size_t)bytes, size = (size_t)bytes;
  int32_t i = 0;
  for (; i + 32 <= dim; i += 32) strip(acc + i, p, v + (size_t)i * size, stride, n, 4, bytes);
  for (; i + 8 <= dim; i += 8) strip(acc + i, p, v + (size_t)i * size, stride, n, 1, bytes);
  return i;
}

NEON static void mix_kv16(int64_t *acc, const int32_t *p, const int16_t *v, int32_t dim, int32_t n) {
  int32_t from = mix(acc, p, (const int8_t *)v, dim, n, 2);
  for (int32_t j = 0; j < n && from < dim; j++, v += dim)
    for (int32_t i = from; i < dim; i++) acc[i] += (int64_t)p[j] * v[i];
}

NEON static void mix_kv8(int64_t *acc, const int32_t *p, const int8_t *v, int32_t dim, int32_t n) {
  int32_t from = mix(acc, p, v, dim, n, 1);
  for (int32_t j = 0; j < n && from < dim; j++, v += dim)
    for (int32_t i = from; i < dim; i++) acc[i] += (int64_t)p[j] * v[i];
}

void ep_neon_attention(ep_kernels *table) {
  table->score_kv16 = score_kv16;
  table->score_kv8 = score_kv8;
  table->mix_kv16 = mix_kv16;
  table->mix_kv8 = mix_kv8;
}

#else
typedef int ep_nothing; /* C has no empty files */
#endif
