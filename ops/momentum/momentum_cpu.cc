#include "momentum.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "../common/cpu_features.h"
#include "../common/elements.h"
#include "../common/float_mode.h"
#include "momentum_kernels.h"

namespace hvds {
namespace {

constexpr int64_t kWorthATask = 131072;       // elements for which waking a thread pays off
constexpr int64_t kWorthStreaming = 1 << 20;  // elements of a vector that does not fit the caches anyway
constexpr int64_t kWorthClearing = 8192;      // indices per task: each costs a cache line
constexpr int64_t kLine = 16;                 // floats in 64 bytes

const MomentumKernels& kernels_in_use() {
#if defined(__x86_64__) && defined(__GNUC__)
  if (hvds_isa() == HVDS_AVX512) return kAvx512Momentum;
  if (hvds_isa() == HVDS_AVX2) return kAvx2Momentum;
#endif
  return kBaseMomentum;
}

bool in_lines(const float* to) { return reinterpret_cast<uintptr_t>(to) % 64 == 0; }

// Whether results are written past the caches: never over the velocity, which has just been read into them.
bool streams(const MomentumRun& whole) {
  return whole.length >= kWorthStreaming && whole.velocity_out != whole.velocity && in_lines(whole.velocity_out) &&
         (whole.moves == nullptr || in_lines(whole.moves));
}

// Cuts [0, size) into runs of whole cache lines and calls body(first, last) for each, in parallel.
template <typename Body>
void parallel_runs(const hvds_parallel* parallel, int64_t worth, int64_t size, Body&& body) {
  const int64_t lines = (size + kLine - 1) / kLine;
  const auto tasks = static_cast<int>(std::clamp<int64_t>(size / worth, 1, thread_count(parallel)));
  parallel_for(parallel, tasks, [&](int task) {
    const StandardFloats standard;
    body(lines * task / tasks * kLine, std::min(lines * (task + 1) / tasks * kLine, size));
  });
}

MomentumRun cut(const MomentumRun& whole, int64_t item_size, int64_t first, int64_t last) {
  MomentumRun run = whole;
  run.parts = static_cast<const char*>(whole.parts) + first * item_size;
  run.velocity += first;
  run.velocity_out += first;
  if (whole.moves != nullptr) run.moves += first;
  run.length = last - first;
  return run;
}

template <typename Part>
int32_t blame(const Part* parts, int32_t count, int64_t size) {
  for (int32_t part = 0; part < count; ++part) {
    const Part* row = parts + part * size;
    if (!std::all_of(row, row + size, [](Part each) { return std::isfinite(widen(each)); })) return 1 + part;
  }
  return 1 + count;
}

int32_t blame(const void* parts, hvds_dtype dtype, int32_t count, int64_t size) {
  if (dtype == HVDS_FLOAT16) return blame(static_cast<const Half*>(parts), count, size);
  if (dtype == HVDS_BFLOAT16) return blame(static_cast<const Bfloat16*>(parts), count, size);
  return blame(static_cast<const float*>(parts), count, size);
}

}  // namespace
}  // namespace hvds

extern "C" int32_t hvds_momentum(const void* parts, hvds_dtype dtype, int32_t count, int64_t size,
                                 const float* velocity, float decay, float gain, float* velocity_out, float* moves,
                                 const hvds_parallel* parallel) {
  using namespace hvds;
  MomentumRun whole{parts, count, size, velocity, velocity_out, moves, size, decay, gain, false};
  whole.streams = streams(whole);
  const auto advance = kernels_in_use().advance[dtype];
  const int64_t item_size = dtype == HVDS_FLOAT32 ? 4 : 2;
  std::atomic<bool> finite{true};
  parallel_runs(parallel, kWorthATask, size, [&](int64_t first, int64_t last) {
    if (!advance(cut(whole, item_size, first, last))) finite = false;
  });
  return finite ? 0 : blame(parts, dtype, count, size);
}

extern "C" int64_t hvds_clear(const float* vector, int64_t size, const int32_t* indices, int64_t count, float* cleared,
                              const hvds_parallel* parallel) {
  using namespace hvds;
  const auto outside = [size](int32_t index) { return index < 0 || index >= size; };
  const int32_t* misplaced = std::find_if(indices, indices + count, outside);
  if (misplaced != indices + count) return misplaced - indices;
  if (cleared != vector) {
    parallel_runs(parallel, kWorthATask, size, [&](int64_t first, int64_t last) {
      std::memcpy(cleared + first, vector + first, (last - first) * sizeof *cleared);
    });
  }
  parallel_runs(parallel, kWorthClearing, count, [&](int64_t first, int64_t last) {
    for (int64_t each = first; each < last; ++each) cleared[indices[each]] = 0;
  });
  return -1;
}
