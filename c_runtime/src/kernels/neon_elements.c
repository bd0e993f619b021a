/* Rounding and the operators that work number by number, with Advanced SIMD. */
#include "elements.h"
#include "neon.h"

#ifdef EP_HAS_NEON
NEON static int32_t narrow16(int16_t *q, const int32_t *x, int32_t n) {
  uint32x4_t most = vdupq_n_u32(0); /* |-2^31| is 2^31 without sign */
  int32_t i = 0;
  for (; i + 4 <= n; i += 4) most = vmaxq_u32(most, vreinterpretq_u32_s32(vabsq_s32(vld1q_s32(x + i))));
  int64_t a = vmaxvq_u32(most);
  for (; i < n; i++)
    if ((int64_t)ep_abs(x[i]) > a) a = (int64_t)ep_abs(x[i]);
  int32_t s = ep_narrow16_shift(a);
  const int32x4_t shift = vdupq_n_s32(-s); /* to the right, rounding halves up */
  for (i = 0; i + 8 <= n; i += 8) {
    int32x4_t low = vrshlq_s32(vld1q_s32(x + i), shift), high = vrshlq_s32(vld1q_s32(x + i + 4), shift);
    vst1q_s16(q + i, vmovn_high_s32(vmovn_s32(low), high));
  }
  for (; i < n; i++) q[i] = (int16_t)ep_rshift_round(x[i], s);
  return s;
}

void ep_neon_elements(ep_kernels *table) {
  table->narrow16 = narrow16;
}

#else
typedef int ep_nothing; /* C has no empty files */
#endif
