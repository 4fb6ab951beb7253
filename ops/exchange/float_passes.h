// Passes over vectors that memory bounds, and so the width of the instructions where they are narrow; each exists once
// for each instruction set. float_passes.inc has their text.
#ifndef HVD_SPARSE_OPS_FLOAT_PASSES_H_
#define HVD_SPARSE_OPS_FLOAT_PASSES_H_

#include <cstdint>

#include "../common/elements.h"

namespace hvds {

constexpr int kRowsAtOnce = 4;

// For Element float or Bfloat16, which each instruction set widens in a register.
template <typename Element>
struct FloatPasses {
  bool (*all_finite)(const Element* x, int64_t count);

  // Sets (or, in the second table, adds to) sum [count] rows that lie `stride` apart, 1 to kRowsAtOnce of them: the n-th
  // function takes n + 1. Returns whether all sums are finite.
  bool (*sum[kRowsAtOnce])(const Element* rows, int64_t stride, float* sum, int64_t count);
  bool (*add[kRowsAtOnce])(const Element* rows, int64_t stride, float* sum, int64_t count);

  // mean = total / divisor, and may be total itself; returns whether all of it is finite.
  bool (*divide)(const float* total, float divisor, Element* mean, int64_t count);
};

// Those for the instruction set in use.
template <typename Element>
const FloatPasses<Element>& float_passes();

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_FLOAT_PASSES_H_
