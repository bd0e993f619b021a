/* LINEAR with AVX-VNNI; the other kernels are those of AVX2. */
#include "avxvnni.h"

#ifdef EP_HAS_AVXVNNI
#include "avx2_linear.h"

void ep_avxvnni_kernels(ep_kernels *table, uint32_t cpu) {
  if (!(cpu & EP_CPU_AVX2) || !(cpu & EP_CPU_AVXVNNI)) return;
  table->name = "avxvnni";
  put_linear(table);
  ep_avxvnni_groups(table);
}

#else

void ep_avxvnni_kernels(ep_kernels *table, uint32_t cpu) {
  (void)table;
  (void)cpu;
}

#endif
