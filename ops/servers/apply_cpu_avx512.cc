// Steps of optimizers for AVX-512.
#if defined(__x86_64__) && defined(__GNUC__)

#include <cstring>

#include "../common/vectors_avx512.h"
#include "apply_kernels.h"

#define HVDS_ISA avx512
#define HVDS_APPLY kAvx512Apply

namespace hvds {
namespace avx512 {
namespace {

HVDS_INLINE Floats root(Floats values) { return _mm512_sqrt_ps(values); }

}  // namespace
}  // namespace avx512
}  // namespace hvds

#include "apply_kernels.inc"

#endif  // __x86_64__ && __GNUC__
