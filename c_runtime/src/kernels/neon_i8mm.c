/* LINEAR for several tokens with matrix products of bytes (SMMLA): two rows by two tokens, eight columns at a time. A single token gains
 * nothing from them. */
#include "neon_dot.h"

#if defined(EP_HAS_NEON) && defined(I8MM)
#define TARGET I8MM

INLINE int8x16_t lows(int8x16_t a, int8x16_t b) { return vreinterpretq_s8_s64(vzip1q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b))); }
INLINE int8x16_t highs(int8x16_t a, int8x16_t b) { return vreinterpretq_s8_s64(vzip2q_s64(vreinterpretq_s64_s8(a), vreinterpretq_s64_s8(b))); }

/* Two tokens go together: eight columns of both, then the next eight. */
INLINE int8x16x4_t beside(int8x16x4_t v) {
  return (int8x16x4_t){{lows(v.val[0], v.val[1]), highs(v.val[0], v.val[1]), lows(v.val[2], v.val[3]), highs(v.val[2], v.val[3])}};
}

/* panel: of each eight columns those of rows 0 and 1, then of rows 2 and 3. */
INLINE void turn(int8_t *panel, const int8x16_t w[4]) {
  const int64x2x4_t rows = {{vreinterpretq_s64_s8(w[0]), vreinterpretq_s64_s8(w[1]), vreinterpretq_s64_s8(w[2]), vreinterpretq_s64_s8(w[3])}};
  vst4q_s64((int64_t *)(void *)panel, rows);
}

/* s: rows 0 and 1 by tokens 0 and 1, rows 2 and 3 by these, rows 0 and 1 by tokens 2 and 3, rows 2 and 3 by these. */
I8MM INLINE void multiply(int32x4_t s[4], int8x16x4_t w, int8x16x4_t v) {
  UNROLL for (int part = 0; part < 2; part++)
    UNROLL for (int k = 0; k < 4; k++) s[k] = vmmlaq_s32(s[k], w.val[2 * part + k % 2], v.val[part + k / 2 * 2]);
}

INLINE void by_token(int32x4_t s[4]) {
  UNROLL for (int k = 0; k < 4; k += 2) {
    int32x4_t a = s[k], b = s[k + 1];
    s[k] = vuzp1q_s32(a, b), s[k + 1] = vuzp2q_s32(a, b);
  }
}

#include "neon_tile.h"

void ep_neon_i8mm(ep_kernels *table) { set_linear(table); }

#else
typedef int ep_nothing; /* C has no empty files */
#endif
