#include <algorithm>

#include "../common/cpu_features.h"
#include "../common/float_mode.h"
#include "apply_kernels.h"

namespace hvds {
namespace {

constexpr int64_t kWorthATask = 131072;  // elements for which waking a thread pays off
constexpr int64_t kPlacesWorthATask = 16384;
constexpr int64_t kBlock = 128;  // places gathered at a time: with all slots they fit the first-level cache
constexpr int64_t kAhead = 32;   // prefetch distance, in places

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

// Gathers a block's elements of one vector, while prefetching later ones.
//   known: how many places there are from the block's first one on.
void take(const float* vector, const int32_t* places, int64_t count, int64_t known, float* block) {
  const int64_t asked = std::clamp<int64_t>(known - kAhead, 0, count);
  for (int64_t i = 0; i < asked; ++i) {
    __builtin_prefetch(vector + places[i + kAhead], 1);
    block[i] = vector[places[i]];
  }
  for (int64_t i = asked; i < count; ++i) block[i] = vector[places[i]];
}

void put(const float* block, const int32_t* places, int64_t count, float* vector) {
  for (int64_t i = 0; i < count; ++i) vector[places[i]] = block[i];
}

// A step for the elements at some places of a run of unknown length; the gradient has one value per place.
void apply_at(const ApplyRun& whole, const int32_t* places, int64_t first, int64_t last) {
  alignas(64) float blocks[1 + HVDS_MOST_SLOTS][kBlock];
  float* const vectors[] = {whole.weights, whole.slots[0], whole.slots[1], whole.slots[2]};
  const int32_t used = 1 + kCounts[whole.step.optimizer].slots;
  for (int64_t at = first; at < last; at += kBlock) {
    const int64_t count = std::min(kBlock, last - at);
    for (int32_t number = 0; number < used; ++number) {
      take(vectors[number], places + at, count, last - at, blocks[number]);
    }
    kernels_in_use().apply[whole.step.optimizer](
        {whole.step, blocks[0], {blocks[1], blocks[2], blocks[3]}, whole.gradient + at, count, 0});
    for (int32_t number = 0; number < used; ++number) put(blocks[number], places + at, count, vectors[number]);
  }
}

}  // namespace
}  // namespace hvds

extern "C" int32_t hvds_slot_count(hvds_optimizer optimizer) { return hvds::kCounts[optimizer].slots; }

extern "C" int32_t hvds_number_count(hvds_optimizer optimizer) { return hvds::kCounts[optimizer].numbers; }

extern "C" void hvds_apply(const hvds_step* step, float* weights, float* const* slots, const float* gradient,
                           int64_t size, const hvds_parallel* parallel) {
  using namespace hvds;
  ApplyRun whole{*step, weights, {}, gradient, size, hvds_bytes_ahead() / static_cast<int64_t>(sizeof(float))};
  std::copy_n(slots, kCounts[step->optimizer].slots, whole.slots);
  const auto apply = kernels_in_use().apply[step->optimizer];
  const int64_t lines = (size + kLine - 1) / kLine;
  const auto tasks = static_cast<int>(std::clamp<int64_t>(size / kWorthATask, 1, thread_count(parallel)));
  parallel_for(parallel, tasks, [&](int task) {
    const FlushedFloats flushed;
    apply(cut(whole, lines * task / tasks * kLine, std::min(lines * (task + 1) / tasks * kLine, size)));
  });
}

extern "C" void hvds_apply_places(const hvds_step* step, float* weights, float* const* slots, const float* gradient,
                                  const int32_t* places, int64_t count, const hvds_parallel* parallel) {
  using namespace hvds;
  ApplyRun whole{*step, weights, {}, gradient, 0, 0};
  std::copy_n(slots, kCounts[step->optimizer].slots, whole.slots);
  const auto tasks = static_cast<int>(std::clamp<int64_t>(count / kPlacesWorthATask, 1, thread_count(parallel)));
  parallel_for(parallel, tasks, [&](int task) {
    const FlushedFloats flushed;
    apply_at(whole, places, count * task / tasks, count * (task + 1) / tasks);
  });
}
