// The inner loops in vectors of four: SSE2 on x86-64, elsewhere whatever the compiler makes of them.
#include "../common/cpu_features.h"
#include "../common/dtype.h"
#include "../common/vectors_base.h"
#include "select_cpu_kernels.h"

#define HVDS_ISA base
#define HVDS_KERNELS kBaseKernels

namespace hvds {
namespace base {
namespace {

using Keys = Ints;
constexpr double kDenseFrom = 2.0;

HVDS_INLINE Floats zero() { return Floats{}; }
HVDS_INLINE Floats add(Floats a, Floats b) { return a + b; }
HVDS_INLINE Floats subtract(Floats a, Floats b) { return a - b; }

HVDS_INLINE Keys as_keys(Floats values) { return reinterpret_cast<Keys>(values); }
HVDS_INLINE Keys keys(Floats values) { return as_keys(values) & static_cast<int32_t>(kHighestKey); }
HVDS_INLINE Floats magnitudes(Keys keys) { return reinterpret_cast<Floats>(keys); }
HVDS_INLINE Keys larger(Keys a, Keys b) { return a > b ? a : b; }

// A bound minus one, as a vector: SSE2 has only a signed "greater than", which works for all bounds from 0 to kNoKey.
HVDS_INLINE Keys bound(Key key) {
  const int32_t below = static_cast<int32_t>(key - 1);
  return Keys{below, below, below, below};
}

HVDS_INLINE unsigned reaching(Keys keys, Keys bound) {
  const Keys greater = keys > bound;
#if defined(__SSE2__)
  return static_cast<unsigned>(_mm_movemask_ps(reinterpret_cast<__m128>(greater)));
#else
  return (greater[0] & 1) | (greater[1] & 2) | (greater[2] & 4) | (greater[3] & 8);
#endif
}

HVDS_INLINE Floats where_reaching(Keys keys, Keys bound, Floats then, Floats otherwise) {
  return keys > bound ? then : otherwise;
}

HVDS_INLINE Keys iota(int32_t first) { return Keys{first, first + 1, first + 2, first + 3}; }

HVDS_INLINE Keys advanced(Keys index, int32_t by) { return index + by; }
HVDS_INLINE Keys no_keys() { return Keys{}; }
HVDS_INLINE Keys load_keys(const void* from) {
  Keys keys;
  memcpy(&keys, from, sizeof keys);
  return keys;
}

// Writes the entries whose bit is set, one after the other.
HVDS_INLINE void compress(void* to, Keys entries, unsigned mask) {
  auto* out = static_cast<int32_t*>(to);
  for (; mask != 0; mask &= mask - 1) *out++ = entries[__builtin_ctz(mask)];
}

template <typename Narrow>
HVDS_INLINE Floats rounded(Floats values) {
  Floats result;
  for (int lane = 0; lane < kWidth; ++lane) result[lane] = widen(narrow<Narrow>(values[lane]));
  return result;
}

HVDS_INLINE Floats rounded_to_half(Floats values) { return rounded<Half>(values); }
HVDS_INLINE Floats rounded_to_bfloat16(Floats values) { return rounded<Bfloat16>(values); }

template <typename Narrow>
HVDS_INLINE void store_narrow(Narrow* to, Floats values) {
  for (int lane = 0; lane < kWidth; ++lane) to[lane] = narrow<Narrow>(values[lane]);
}

}  // namespace
}  // namespace base
}  // namespace hvds

#include "select_cpu_kernels.inc"
