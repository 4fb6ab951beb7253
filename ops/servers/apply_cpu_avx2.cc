// Steps of optimizers for AVX2.
#if defined(__x86_64__) && defined(__GNUC__)

#include <cstring>

#include "../common/vectors_avx2.h"
#include "apply_kernels.h"

#define HVDS_ISA avx2
#define HVDS_APPLY kAvx2Apply

namespace hvds {
namespace avx2 {
namespace {

HVDS_INLINE Floats root(Floats values) { return _mm256_sqrt_ps(values); }

}  // namespace
}  // namespace avx2
}  // namespace hvds

#include "apply_kernels.inc"

#endif  // __x86_64__ && __GNUC__
