// The inner loops in vectors of 16 bytes: SSE2 on x86-64, and whatever the compiler makes of them elsewhere.
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <cfloat>
#include <cmath>
#include <cstring>

#include "../common/elements.h"

#define LARS_ISA base
#define LARS_KERNELS kBaseKernels
#define HVDS_TARGET
#define HVDS_INLINE inline __attribute__((always_inline))

namespace lars {
namespace base {
namespace {

typedef float Floats __attribute__((vector_size(16)));
typedef double Doubles __attribute__((vector_size(16)));

HVDS_INLINE Floats load(const float* from) {
  Floats values;
  memcpy(&values, from, sizeof values);
  return values;
}

HVDS_INLINE Doubles load(const double* from) {
  Doubles values;
  memcpy(&values, from, sizeof values);
  return values;
}

template <typename Narrow>
HVDS_INLINE Floats load(const Narrow* from) {
  return Floats{hvds::widen(from[0]), hvds::widen(from[1]), hvds::widen(from[2]), hvds::widen(from[3])};
}

HVDS_INLINE Doubles load_doubles(const double* from) { return load(from); }

template <typename Narrow>
HVDS_INLINE Doubles load_doubles(const Narrow* from) {
  return Doubles{hvds::widen(from[0]), hvds::widen(from[1])};
}

HVDS_INLINE void store(float* to, Floats values) { memcpy(to, &values, sizeof values); }
HVDS_INLINE void store(double* to, Doubles values) { memcpy(to, &values, sizeof values); }

template <typename Narrow>
HVDS_INLINE void store(Narrow* to, Floats values) {
  for (int lane = 0; lane < 4; ++lane) to[lane] = hvds::narrow<Narrow>(values[lane]);
}

HVDS_INLINE Floats repeated(float value) { return Floats{value, value, value, value}; }
HVDS_INLINE Doubles repeated(double value) { return Doubles{value, value}; }

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
