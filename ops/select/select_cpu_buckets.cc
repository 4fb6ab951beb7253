// The largest magnitudes of every run of consecutive elements. Each run is summed, searched and settled while it is in
// the first-level cache, so that memory is read and written once.
#include <functional>
#include <new>

#include "../common/cpu_features.h"
#include "select_cpu_call.h"

namespace hvds {
namespace {

constexpr int64_t kWorthATask = 131072;       // elements for which waking a thread pays off
constexpr int64_t kWorthStreaming = 1 << 20;  // elements of a vector that does not fit the caches anyway
constexpr int64_t kLeastGroups = 16;

struct Job {
  const Kernels& kernels;
  const Input& input;
  const Output& output;
  hvds_workspace& workspace;
  int64_t bucket;  // elements of a full run
  int64_t kept;    // of a full run
  bool streams;    // residual_out is written past the caches

  int64_t buckets() const { return (input.size + bucket - 1) / bucket; }
};

// One run, and its part of the output.
struct Run {
  int64_t first;
  int64_t length;
  int64_t kept;
  int64_t out;
};

Run run_of(const Job& job, int64_t number) {
  const int64_t first = number * job.bucket;
  const int64_t length = std::min(job.bucket, job.input.size - first);
  return {first, length, std::min(job.kept, length), number * job.kept};
}

// Computes acc of a run.
void accumulate(const Job& job, const Run& run, TaskMemory& memory, float* acc) {
  const Input& input = job.input;
  const int64_t item = input.dtype == HVDS_FLOAT32 ? 4 : 2;
  const void* source = static_cast<const char*>(input.parts) + run.first * item;
  int dtype = input.dtype;
  if (input.count > 1) {
    float* sum = memory.sum.data();
    job.kernels.sum_parts[dtype](source, input.count, input.stride, run.length, sum);
    source = sum;
    dtype = HVDS_FLOAT32;
  }
  const float* residual = input.residual == nullptr ? nullptr : input.residual + run.first;
  const Tile tile{source, residual, acc, 0, static_cast<int32_t>(run.length), hvds_bytes_ahead()};
  Candidates none{memory.index.data(), memory.value.data(), 0};
  job.kernels.feed_back[dtype](tile, {job.output.dtype, false}, {kNoKey, kNoKey, kNoKey}, false, none, nullptr);
}

// If the run is divided into groups, at least `kept` groups reach the magnitude of rank `kept` among the groups'
// maxima, so elements below it are not kept. A few groups per kept element are enough.
Key lower_bound(const Run& run, Key* maxima) {
  int64_t groups = kLanes;
  if (run.kept >= groups) return 0;
  while (groups > kLeastGroups && groups >= 8 * run.kept) {
    groups /= 2;
    for (int64_t group = 0; group < groups; ++group) maxima[group] = larger(maxima[group], maxima[group + groups]);
  }
  std::nth_element(maxima, maxima + run.kept - 1, maxima + groups, std::greater<Key>());
  return maxima[run.kept - 1];
}

// The kept elements of a run, in order, by their positions in the run.
Candidates chosen_from(const Job& job, const Run& run, Key lower, const float* acc, TaskMemory& memory) {
  const Tile tile{acc, nullptr, nullptr, 0, static_cast<int32_t>(run.length), 0};
  Candidates found{memory.index.data(), memory.value.data(), 0};
  job.kernels.scan[HVDS_FLOAT32](tile, {lower, kNoKey, kNoKey}, false, found, nullptr);
  if (found.count == run.kept) return found;
  const uint32_t* keys = keys_of(found.value);
  const Key edge = ranked_key(job.kernels, keys, found.count, run.kept, memory.keys.data());
  const Counts counts = job.kernels.count(keys, found.count, exact_thresholds(edge));
  job.kernels.compact(found, edge, run.kept - counts.sure);
  return found;
}

float decoded(float value, int wire) {
  if (wire == HVDS_FLOAT16) return widen(narrow<Half>(value));
  return wire == HVDS_BFLOAT16 ? widen(narrow<Bfloat16>(value)) : value;
}

void send(const Job& job, const Run& run, const Candidates& chosen, float* acc) {
  const Output& output = job.output;
  const int64_t item = output.dtype == HVDS_FLOAT32 ? 4 : 2;
  job.kernels.narrow[output.dtype](chosen.value, chosen.count, static_cast<char*>(output.values) + run.out * item);
  for (int64_t j = 0; j < chosen.count; ++j) {
    const float value = chosen.value[j];
    output.indices[run.out + j] = static_cast<int32_t>(run.first) + chosen.index[j];
    acc[chosen.index[j]] = value - decoded(value, output.dtype);
  }
}

// Returns the highest magnitude of the run.
Key select(const Job& job, const Run& run, TaskMemory& memory) {
  float* const out = job.output.residual_out + run.first;
  float* const acc = job.streams ? memory.acc.data() : out;
  accumulate(job, run, memory, acc);
  Key maxima[kLanes];
  job.kernels.fold(keys_of(acc), run.length, maxima);
  const Key highest = *std::max_element(maxima, maxima + kLanes);
  send(job, run, chosen_from(job, run, lower_bound(run, maxima), acc, memory), acc);
  if (job.streams) job.kernels.stream_copy(acc, run.length * static_cast<int64_t>(sizeof *acc), out);
  return highest;
}

void reserve(const Job& job, TaskMemory& memory) {
  memory.index.reserve(job.bucket + kOverhang);
  memory.value.reserve(job.bucket + kOverhang);
  memory.keys.reserve(job.bucket + kOverhang);
  if (job.streams) memory.acc.reserve(job.bucket);
  if (job.input.count > 1) memory.sum.reserve(job.bucket);
}

// Returns the highest magnitude of all.
Key select_all(const Job& job, const hvds_parallel* parallel) {
  const auto tasks = static_cast<int>(std::clamp<int64_t>(job.input.size / kWorthATask, 1, thread_count(parallel)));
  if (job.workspace.memory.size() < static_cast<size_t>(tasks)) job.workspace.memory.resize(tasks);
  std::vector<Key> highest(tasks);
  for (int task = 0; task < tasks; ++task) reserve(job, job.workspace.memory[task]);
  parallel_for(parallel, tasks, [&](int task) {
    const StandardFloats standard;
    const int64_t end = job.buckets() * (task + 1) / tasks;
    for (int64_t number = job.buckets() * task / tasks; number < end; ++number) {
      highest[task] = std::max(highest[task], select(job, run_of(job, number), job.workspace.memory[task]));
    }
    if (job.streams) job.kernels.end_streaming();
  });
  return *std::max_element(highest.begin(), highest.end());
}

bool in_cache_lines(const float* to) { return reinterpret_cast<uintptr_t>(to) % 64 == 0; }

}  // namespace
}  // namespace hvds

extern "C" int hvds_feedback_bucket_topk(const void* parts, int dtype, int64_t count, int64_t stride,
                                         const float* residual, int64_t size, int64_t bucket, int64_t kept, int wire,
                                         void* values, int32_t* indices, float* residual_out, int32_t* culprit,
                                         hvds_workspace* workspace, const hvds_parallel* parallel) try {
  const hvds::Input input{parts, dtype, count, stride, residual, size};
  const hvds::Output output{values, wire, indices, residual_out};
  if (!hvds::valid(input, output, workspace) || kept < 1 || kept > bucket) return HVDS_BAD_ARGUMENT;
  *culprit = 0;
  if (size == 0) return HVDS_OK;
  const bool streams = residual_out != residual && size >= hvds::kWorthStreaming && hvds::in_cache_lines(residual_out);
  const hvds::Job job{hvds::kernels_of(hvds_isa()), input, output, *workspace, std::min(bucket, size),
                      std::min(kept, size), streams};
  *culprit = hvds::culprit_of(input, wire, hvds::select_all(job, parallel));
  return HVDS_OK;
} catch (const std::bad_alloc&) {
  return HVDS_OUT_OF_MEMORY;
}
