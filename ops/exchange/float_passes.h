// Memory-bound passes over vectors, which narrow instructions would slow down. Each exists once per instruction set;
// their source is float_passes.inc.
#ifndef HVD_SPARSE_OPS_FLOAT_PASSES_H_
#define HVD_SPARSE_OPS_FLOAT_PASSES_H_

#include <cstdint>

#include "../common/elements.h"

namespace hvds {

constexpr int kRowsAtOnce = 4;

// For Element float or Bfloat16, which every instruction set can widen in a register.
template <typename Element>
struct FloatPasses {
  bool (*all_finite)(const Element* x, int64_t count);

  // Sets sum [count] to the sum of rows that lie `stride` apart, 1 to kRowsAtOnce of them (the second table: adds them
  // to sum): function n takes n + 1 rows. Returns whether all sums are finite.
  bool (*sum[kRowsAtOnce])(const Element* rows, int64_t stride, float* sum, int64_t count);
  bool (*add[kRowsAtOnce])(const Element* rows, int64_t stride, float* sum, int64_t count);

  // mean = total / divisor, where mean may be total itself; returns whether every element is finite.
  bool (*divide)(const float* total, float divisor, Element* mean, int64_t count);
};

// The passes for the instruction set in use.
template <typename Element>
const FloatPasses<Element>& float_passes();

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_FLOAT_PASSES_H_
