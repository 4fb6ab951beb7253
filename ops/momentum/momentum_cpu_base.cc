// Momentum in vectors of 16 bytes: SSE2 on x86-64, and whatever the compiler makes of them elsewhere.
#include "../common/vectors_base.h"
#include "momentum_kernels.h"

#define HVDS_ISA base
#define HVDS_MOMENTUM kBaseMomentum

#include "momentum_kernels.inc"
