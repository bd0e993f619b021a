/* Cortex-M with Helium (M55, M85): eight products of 16 bits at a time, into scalar registers, so that nothing is added up at the end.
 * Rounding and what else is left is the DSP extension's. */
#include "dsp.h"

#ifdef EP_HAS_MVE
#include <arm_mve.h>

#define INLINE static inline __attribute__((always_inline))

/* ---- LINEAR ----------------------------------------------------------------------------------------------------- */

/* sum[r] = w[r * stride ...] . x for four rows, over n columns, a multiple of 8. The caller keeps them below 2^31. */
INLINE void rows_of(int32_t *sum, const int8_t *w, size_t stride, const int16_t *x, int32_t n) {
  int32_t a = 0, b = 0, c = 0, d = 0;
  for (const int16_t *end = x + n; x < end; x += 8, w += 8) {
    const int16x8_t v = vldrhq_s16(x);
    a = vmladavaq_s16(a, vldrbq_s16(w), v);
    b = vmladavaq_s16(b, vldrbq_s16(w + stride), v);
    c = vmladavaq_s16(c, vldrbq_s16(w + 2 * stride), v);
    d = vmladavaq_s16(d, vldrbq_s16(w + 3 * stride), v);
  }
  sum[0] = a, sum[1] = b, sum[2] = c, sum[3] = d;
}

/* Sixteen codes of w4g32 against even and odd columns. */
INLINE int32_t sixteen(const int8_t *w, int16x8x2_t x, int32_t sum) {
  const uint16x8_t codes = vldrbq_u16((const uint8_t *)w);
  sum = vmladavaq_s16(sum, vreinterpretq_s16_u16(vandq_u16(codes, vdupq_n_u16(15))), x.val[0]);
  return vmladavaq_s16(sum, vreinterpretq_s16_u16(vshrq_n_u16(codes, 4)), x.val[1]);
}

/* As rows_of for the 32 columns of a group of w4g32. */
INLINE void rows_of_w4(int32_t *sum, const int8_t *w, size_t stride, const int16_t *x) {
  int32_t a = 0, b = 0, c = 0, d = 0;
  for (const int16_t *end = x + 32; x < end; x += 16, w += 8) {
    const int16x8x2_t v = vld2q_s16(x);
    a = sixteen(w, v, a);
    b = sixteen(w + stride, v, b);
    c = sixteen(w + 2 * stride, v, c);
    d = sixteen(w + 3 * stride, v, d);
  }
  sum[0] = a, sum[1] = b, sum[2] = c, sum[3] = d;
}
#define EP_ROWS rows_of
#define EP_ROWS_W4 rows_of_w4
#include "dsp_linear.h"

/* ---- attention -------------------------------------------------------------------------------------------------- */

static void score_kv16(int64_t *out, const int16_t *q, const int16_t *k, int32_t dim, int32_t n) {
  const int32_t whole = dim & -8;
  for (int32_t j = 0; j < n; j++, k += dim) {
    int64_t sum = 0;
    for (int32_t i = 0; i < whole; i += 8) sum = vmlaldavaq_s16(sum, vldrhq_s16(q + i), vldrhq_s16(k + i));
    for (int32_t i = whole; i < dim; i++) sum += q[i] * k[i];
    out[j] = sum;
  }
}

/* Four keys at a time, gathered. */
#define FOUR_KEYS(gather)                                                               \
  const uint32x4_t keys = vmulq_n_u32(vidupq_n_u32(0, 1), (uint32_t)dim);               \
  for (const int32_t *whole = p + (n & -4); p < whole; p += 4, v += 4 * dim) {          \
    const int32x4_t weight = vldrwq_s32(p);                                             \
    a = vmlaldavaq_s32(a, weight, gather(v, keys));                                     \
    if (some == 1) continue;                                                            \
    b = vmlaldavaq_s32(b, weight, gather(v + 1, keys));                                 \
    c = vmlaldavaq_s32(c, weight, gather(v + 2, keys));                                 \
    d = vmlaldavaq_s32(d, weight, gather(v + 3, keys));                                 \
  }
EP_MIX(mix_kv16, int16_t, FOUR_KEYS(vldrhq_gather_shifted_offset_s32))
EP_MIX(mix_kv8, int8_t, FOUR_KEYS(vldrbq_gather_offset_s32))

void ep_mve_kernels(ep_kernels *table, uint32_t cpu) {
  if (!(cpu & EP_CPU_MVE)) return;
  table->name = "mve";
  table->linear_w8 = EP_KERNEL(EP_FEATURE_W8, linear_w8);
  table->linear_w8g32 = EP_KERNEL(EP_FEATURE_W8G32, linear_w8g32);
  table->linear_w4g32 = EP_KERNEL(EP_FEATURE_W4G32, linear_w4g32);
  table->score_kv16 = EP_KERNEL(EP_FEATURE_KV16, score_kv16);
  table->score_kv8 = EP_KERNEL(EP_FEATURE_KV8, score_kv8);
  table->mix_kv16 = EP_KERNEL(EP_FEATURE_KV16, mix_kv16);
  table->mix_kv8 = EP_KERNEL(EP_FEATURE_KV8, mix_kv8);
}

#else

void ep_mve_kernels(ep_kernels *table, uint32_t cpu) {
  (void)table;
  (void)cpu;
}

#endif
