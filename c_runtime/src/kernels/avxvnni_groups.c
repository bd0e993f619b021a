/* LINEAR with inputs in groups (a8g32) with AVX-VNNI. */
#include "avxvnni.h"

#ifdef EP_HAS_AVXVNNI
#include "avx2_groups.h"

void ep_avxvnni_groups(ep_kernels *table) { put_groups(table); }

#else
typedef int ep_nothing; /* C has no empty files */
#endif
