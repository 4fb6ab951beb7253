// 16-byte vectors, used by the kernels of select, momentum, quantize and lars: SSE2 on x86-64, elsewhere whatever the
// compiler makes of them.
#ifndef HVD_SPARSE_OPS_VECTORS_BASE_H_
#define HVD_SPARSE_OPS_VECTORS_BASE_H_

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <cstdint>
#include <cstring>

#include "elements.h"

#define HVDS_TARGET
#define HVDS_INLINE inline __attribute__((always_inline))

namespace hvds {
namespace base {
namespace {

typedef float Floats __attribute__((vector_size(16)));
typedef double Doubles __attribute__((vector_size(16)));
typedef int32_t Ints __attribute__((vector_size(16)));
constexpr int kWidth = 4;  // floats per vector

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
  return Floats{widen(from[0]), widen(from[1]), widen(from[2]), widen(from[3])};
}

HVDS_INLINE Doubles load_doubles(const double* from) { return load(from); }

template <typename Narrow>
HVDS_INLINE Doubles load_doubles(const Narrow* from) {
  return Doubles{widen(from[0]), widen(from[1])};
}

HVDS_INLINE void store(float* to, Floats values) { memcpy(to, &values, sizeof values); }
HVDS_INLINE void store(double* to, Doubles values) { memcpy(to, &values, sizeof values); }

// Rounds to nearest, ties to even.
template <typename Narrow>
HVDS_INLINE void store(Narrow* to, Floats values) {
  for (int lane = 0; lane < kWidth; ++lane) to[lane] = narrow<Narrow>(values[lane]);
}

// Non-temporal, to an address aligned to the vector's length; end_streaming() makes it visible to other threads.
#if defined(__SSE2__)
HVDS_INLINE void stream(float* to, Floats values) { _mm_stream_ps(to, values); }
HVDS_INLINE void end_streaming() { _mm_sfence(); }
#else
HVDS_INLINE void stream(float* to, Floats values) { store(to, values); }
HVDS_INLINE void end_streaming() {}
#endif

HVDS_INLINE Floats repeated(float value) { return Floats{value, value, value, value}; }
HVDS_INLINE Doubles repeated(double value) { return Doubles{value, value}; }
HVDS_INLINE Ints repeated(int32_t value) { return Ints{value, value, value, value}; }

}  // namespace
}  // namespace base
}  // namespace hvds

#endif  // HVD_SPARSE_OPS_VECTORS_BASE_H_
