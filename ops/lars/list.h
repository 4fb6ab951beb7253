// What the passes on the CPU and on a GPU share: checks of a list of layers, and numbers derived from a rule.
#ifndef LARS_LIST_H_
#define LARS_LIST_H_

#include <algorithm>

#include "blocks.h"
#include "kernels.h"
#include "passes.h"

namespace lars {

inline bool valid(const lars_layer& layer, int slots) {
  if (layer.size < 0 || layer.dtype < 0 || layer.dtype >= kDtypes) return false;
  if (layer.size == 0) return true;
  bool there = layer.weight != nullptr && layer.gradient != nullptr;
  for (int slot = 0; slot < slots; ++slot) there = there && layer.slots[slot] != nullptr;
  return there;
}

inline bool valid(const lars_layer* layers, int64_t count, int slots) {
  if (count < 0 || (count > 0 && layers == nullptr)) return false;
  return std::all_of(layers, layers + count, [slots](const lars_layer& layer) { return valid(layer, slots); });
}

inline bool valid(const lamb_rule* rule) {
  return rule != nullptr && 0 <= rule->beta_1 && rule->beta_1 < 1 && 0 <= rule->beta_2 && rule->beta_2 < 1 &&
         rule->step >= 1;
}

// The number of blocks of tensors of these sizes, or LARS_BAD_ARGUMENT; size_of(number) gives each tensor's size.
template <typename SizeOf>
int64_t count_blocks(int64_t count, const SizeOf& size_of) {
  int64_t blocks = 0;
  for (int64_t number = 0; number < count; ++number) {
    const int64_t size = size_of(number);
    if (size < 0 || __builtin_add_overflow(blocks, blocks_of(size), &blocks)) return LARS_BAD_ARGUMENT;
  }
  return blocks;
}

inline int64_t count_blocks(const lars_layer* layers, int64_t count) {
  return count_blocks(count, [layers](int64_t number) { return layers[number].size; });
}

inline bool valid_range(const lars_layer* layers, int64_t count, int64_t first, int64_t last, const double* partials) {
  return 0 <= first && first <= last && last <= count_blocks(layers, count) && (first == last || partials != nullptr);
}

// Uses multiplications only, so that the result does not depend on the machine's math library.
inline double power(double base, int64_t exponent) {
  double result = 1;
  for (double factor = base; exponent > 0; exponent >>= 1, factor *= factor) {
    if (exponent & 1) result *= factor;
  }
  return result;
}

inline LambRule derived(const lamb_rule& rule) {
  const auto correction = [&rule](double beta) { return 1 / (1 - power(beta, rule.step)); };
  return {rule.beta_1,     1 - rule.beta_1,         correction(rule.beta_1), rule.beta_2,
          1 - rule.beta_2, correction(rule.beta_2), rule.epsilon};
}

}  // namespace lars

#endif  // LARS_LIST_H_
