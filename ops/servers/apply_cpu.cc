#include <algorithm>

#include "../common/cpu_features.h"
#include "../common/float_mode.h"
#include "apply_kernels.h"

namespace hvds {
namespace {

constexpr int64_t kWorthATask = 131072;  // elements for which waking a thread pays
constexpr int64_t kLine = 16;            // floats in 64 bytes

struct Counts {
  int32_t slots, numbers;
};

constexpr Counts kCounts[HVDS_OPTIMIZERS] = {{0, 1}, {1, 2}, {1, 2}, {2, 4}, {1, 2}, {1, 4}, {2, 5}, {2, 4}, {3, 5}};

const ApplyKernels& kernels_in_use() {
#if defined(__x86_64__) && defined(__GNUC__)
  if (hvds_isa() == HVDS_AVX512) return kAvx512Apply;
  if (hvds_isa() == HVDS_AVX2) return kAvx2Apply;
#endif
  return kBaseApply;
}

ApplyRun cut(const ApplyRun& whole, int64_t first, int64_t last) {
  ApplyRun run = whole;
  run.weights += first;
  run.gradient += first;
  for (int slot = 0; slot < kCounts[run.step.optimizer].slots; ++slot) run.slots[slot] += first;
  run.length = last - first;
  return run;
}

}  // namespace
}  // namespace hvds

extern "C" int32_t hvds_slot_count(hvds_optimizer optimizer) { return hvds::kCounts[optimizer].slots; }

extern "C" int32_t hvds_number_count(hvds_optimizer optimizer) { return hvds::kCounts[optimizer].numbers; }

extern "C" void hvds_apply(const hvds_step* step, float* weights, float* const* slots, const float* gradient,
                           int64_t size, const hvds_parallel* parallel) {
  using namespace hvds;
  ApplyRun whole{*step, weights, {}, gradient, size};
  std::copy_n(slots, kCounts[step->optimizer].slots, whole.slots);
  const auto apply = kernels_in_use().apply[step->optimizer];
  const int64_t lines = (size + kLine - 1) / kLine;
  const auto tasks = static_cast<int>(std::clamp<int64_t>(size / kWorthATask, 1, thread_count(parallel)));
  parallel_for(parallel, tasks, [&](int task) {
    const FlushedFloats flushed;
    apply(cut(whole, lines * task / tasks * kLine, std::min(lines * (task + 1) / tasks * kLine, size)));
  });
}
