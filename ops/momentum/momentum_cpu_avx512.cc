// Momentum for AVX-512.
#if defined(__x86_64__) && defined(__GNUC__)

#include "../common/vectors_avx512.h"
#include "momentum_kernels.h"

#define HVDS_ISA avx512
#define HVDS_MOMENTUM kAvx512Momentum

#include "momentum_kernels.inc"

#endif  // __x86_64__ && __GNUC__
