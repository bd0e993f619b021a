#include "edgepos.h"
#include "kernels.h"

/* Better ones override. A file for another instruction set leaves the table as it is. */
void ep_choose_kernels(ep_kernels *table, uint32_t cpu) {
#ifdef EDGEPOS_NATIVE
  cpu |= EP_CPU_DSP | EP_CPU_MVE;
#endif
  ep_generic_kernels(table);
  ep_avx2_kernels(table, cpu);
  ep_avx2_groups(table, cpu);
  ep_avxvnni_kernels(table, cpu);
  ep_avx512_kernels(table, cpu);
  ep_neon_kernels(table, cpu);
  ep_dsp_kernels(table, cpu);
  ep_mve_kernels(table, cpu);
}
