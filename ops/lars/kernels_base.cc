// The inner loops in 16-byte vectors: SSE2 on x86-64, elsewhere whatever the compiler makes of them.
#include <cfloat>
#include <cmath>

#include "../common/vectors_base.h"

#define LARS_ISA base
#define LARS_KERNELS kBaseKernels

namespace lars {
namespace base {
namespace {

using namespace hvds::base;

#if defined(__SSE2__)
HVDS_INLINE Floats root(Floats values) { return _mm_sqrt_ps(values); }
HVDS_INLINE Doubles root(Doubles values) { return _mm_sqrt_pd(values); }
#else
HVDS_INLINE Floats root(Floats values) {
  return Floats{std::sqrt(values[0]), std::sqrt(values[1]), std::sqrt(values[2]), std::sqrt(values[3])};
}
HVDS_INLINE Doubles root(Doubles values) { return Doubles{std::sqrt(values[0]), std::sqrt(values[1])}; }
#endif

HVDS_INLINE Floats normal_or_zero(Floats values) {
  const Floats least = repeated(FLT_MIN);
  return (values < least) & (values > -least) ? repeated(0.0f) : values;
}
HVDS_INLINE Doubles normal_or_zero(Doubles values) {
  const Doubles least = repeated(DBL_MIN);
  return (values < least) & (values > -least) ? repeated(0.0) : values;
}

HVDS_INLINE void add_squares(Doubles* sums, Doubles values) { sums[0] = sums[0] + values * values; }

HVDS_INLINE void add_squares(Doubles* sums, Floats values) {
  add_squares(sums, Doubles{values[0], values[1]});
  add_squares(sums + 1, Doubles{values[2], values[3]});
}

}  // namespace
}  // namespace base
}  // namespace lars

#include "kernels.inc"
