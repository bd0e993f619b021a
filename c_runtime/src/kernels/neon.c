/* Which of the kernels for Advanced SIMD a processor has. */
#include "neon.h"

void ep_neon_kernels(ep_kernels *table, uint32_t cpu) {
#ifdef EP_HAS_NEON
  if (!(cpu & EP_CPU_NEON)) return;
  table->name = "neon";
  ep_neon_linear(table);
  ep_neon_attention(table);
  ep_neon_elements(table);
#ifdef DOTPROD
  if (!(cpu & EP_CPU_DOTPROD)) return;
  table->name = "dotprod";
  ep_neon_dot(table);
#ifdef I8MM
  if (cpu & EP_CPU_I8MM) {
    table->name = "i8mm";
    ep_neon_i8mm(table);
  }
#endif
#endif
#else
  (void)table;
  (void)cpu;
#endif
}
