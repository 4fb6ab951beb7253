// Momentum in 16-byte vectors: SSE2 on x86-64, elsewhere whatever the compiler makes of them.
#include "../common/vectors_base.h"
#include "momentum_kernels.h"

#define HVDS_ISA base
#define HVDS_MOMENTUM kBaseMomentum

#include "momentum_kernels.inc"
