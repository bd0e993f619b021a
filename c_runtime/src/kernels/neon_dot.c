/* LINEAR with dot products of bytes (SDOT), four columns of four rows at a time. */
#include "neon_dot.h"

#if defined(EP_HAS_NEON) && defined(DOTPROD)
#define TARGET DOTPROD

INLINE int8x16x4_t beside(int8x16x4_t v) { return v; }

/* panel: of each four columns those of rows 0 to 3. */
INLINE void turn(int8_t *panel, const int8x16_t w[4]) {
  const int32x4x4_t rows = {{vreinterpretq_s32_s8(w[0]), vreinterpretq_s32_s8(w[1]), vreinterpretq_s32_s8(w[2]), vreinterpretq_s32_s8(w[3])}};
  vst4q_s32((int32_t *)(void *)panel, rows);
}

#define FOUR_COLUMNS(c) \
  UNROLL for (int k = 0; k < 4; k++) s[k] = vdotq_laneq_s32(s[k], w.val[c], v.val[k], c)

DOTPROD INLINE void multiply(int32x4_t s[4], int8x16x4_t w, int8x16x4_t v) {
  FOUR_COLUMNS(0);
  FOUR_COLUMNS(1);
  FOUR_COLUMNS(2);
  FOUR_COLUMNS(3);
}

INLINE void by_token(int32x4_t s[4]) { (void)s; }

#include "neon_tile.h"

void ep_neon_dot(ep_kernels *table) { set_linear(table); }

#else
typedef int ep_nothing; /* C has no empty files */
#endif
