// Steps of optimizers in 16-byte vectors: SSE2 on x86-64, elsewhere whatever the compiler makes of them.
#include <cmath>
#include <cstring>

#include "../common/vectors_base.h"
#include "apply_kernels.h"

#define HVDS_ISA base
#define HVDS_APPLY kBaseApply

namespace hvds {
namespace base {
namespace {

#if defined(__SSE2__)
HVDS_INLINE Floats root(Floats values) { return _mm_sqrt_ps(values); }
#else
HVDS_INLINE Floats root(Floats values) {
  return Floats{std::sqrt(values[0]), std::sqrt(values[1]), std::sqrt(values[2]), std::sqrt(values[3])};
}
#endif

}  // namespace
}  // namespace base
}  // namespace hvds

#include "apply_kernels.inc"
