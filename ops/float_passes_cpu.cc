#include "float_passes.h"

#include "cpu_features.h"
#include "select_elements.h"

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

const FloatPasses& float_passes() {
#if defined(__x86_64__) && defined(__GNUC__)
  if (hvds_isa() >= HVDS_AVX2) return avx2::kPasses;  // wider ones wait for the same memory
#endif
  return base::kPasses;
}

}  // namespace hvds
