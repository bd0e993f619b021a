/* ARM with Advanced SIMD. */
#include "edgepos.h"
#include "kernels.h"

void ep_neon_kernels(ep_kernels *table, uint32_t cpu) {
  (void)table;
  (void)cpu;
}
