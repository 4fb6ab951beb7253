// Momentum for AVX2.
#if defined(__x86_64__) && defined(__GNUC__)

#include "../common/vectors_avx2.h"
#include "momentum_kernels.h"

#define HVDS_ISA avx2
#define HVDS_MOMENTUM kAvx2Momentum

#include "momentum_kernels.inc"

#endif  // __x86_64__ && __GNUC__
