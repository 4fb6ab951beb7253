#include "float_passes.h"

#include "../common/cpu_features.h"

namespace hvds {

namespace base {
namespace {
#define HVDS_TARGET
#include "float_passes.inc"
#undef HVDS_TARGET
}  // namespace
}  // namespace base

#if defined(__x86_64__) && defined(__GNUC__)
namespace avx2 {
namespace {
#define HVDS_TARGET __attribute__((target("avx2")))
#include "float_passes.inc"
#undef HVDS_TARGET
}  // namespace
}  // namespace avx2
#endif

template <typename Element>
const FloatPasses<Element>& float_passes() {
#if defined(__x86_64__) && defined(__GNUC__)
  if (hvds_isa() >= HVDS_AVX2) return avx2::kPasses<Element>;  // wider vectors do not help a memory-bound pass
#endif
  return base::kPasses<Element>;
}

template const FloatPasses<float>& float_passes<float>();
template const FloatPasses<Bfloat16>& float_passes<Bfloat16>();

}  // namespace hvds
