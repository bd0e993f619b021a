/* What the two files for microcontrollers share: which of them this build has. Both are for what the compiler was told to assume, as
 * nothing can be asked at run time. */
#ifndef EP_DSP_H
#define EP_DSP_H

#include "edgepos.h"
#include "elements.h"

/* The loads of weights and keys need no alignment, as on every Cortex-M with these instructions. */
#if defined(__GNUC__) && defined(__arm__) && defined(__ARM_FEATURE_SIMD32) && defined(__ARM_FEATURE_UNALIGNED) && \
    __ARM_ARCH_PROFILE == 'M' && !defined(EDGEPOS_GENERIC_ONLY)
#define EP_HAS_DSP
#if defined(__ARM_FEATURE_MVE) && __ARM_FEATURE_MVE
#define EP_HAS_MVE
#endif
#endif

#endif
