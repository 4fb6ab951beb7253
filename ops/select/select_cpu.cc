// The interface of select.h, and the order of its steps.
#include <new>
#include <type_traits>

#include "../common/cpu_features.h"
#include "select_cpu_call.h"

namespace hvds {
namespace {

constexpr int64_t kWorthATask = 131072;      // elements for which waking a thread pays
constexpr int64_t kGroupsWorthATask = 4096;  // the same, for random reads
constexpr int64_t kAskedFor = 32;            // random reads under way at the same time

// Calls body with a null pointer of the C++ type that stands for a dtype.
template <typename Body>
void with_type(int dtype, Body&& body) {
  if (dtype == HVDS_FLOAT16) return body(static_cast<const Half*>(nullptr));
  if (dtype == HVDS_BFLOAT16) return body(static_cast<const Bfloat16*>(nullptr));
  return body(static_cast<const float*>(nullptr));
}

bool finite(float value) { return key_of(value) < kInfinityKey; }

// ---- The sample ----

template <typename Part>
Key sum_at(const Input& input, int64_t at) {
  const auto* parts = static_cast<const Part*>(input.parts);
  float sum = widen(parts[at]);
  for (int64_t part = 1; part < input.count; ++part) sum += widen(parts[part * input.stride + at]);
  if (input.residual != nullptr) sum += input.residual[at];
  return key_of(sum);
}

template <typename Part>
void ask_for(const Input& input, int64_t at) {
  const auto* parts = static_cast<const Part*>(input.parts);
  for (int64_t part = 0; part < input.count; ++part) __builtin_prefetch(parts + part * input.stride + at);
  if (input.residual != nullptr) __builtin_prefetch(input.residual + at);
}

template <typename Part>
void draw(const Input& input, const SampleGrid& grid, int64_t begin, int64_t end, Key* sample) {
  int64_t positions[kAskedFor];
  for (int64_t group = begin; group < end + kAskedFor; ++group) {
    int64_t& place = positions[group % kAskedFor];
    if (group >= begin + kAskedFor) {
      Key* keys = sample + (group - kAskedFor) * kNeighbours;
      for (int64_t j = 0; j < kNeighbours; ++j) keys[j] = sum_at<Part>(input, place + j);
    }
    if (group < end) {
      place = grid.position(group);
      ask_for<Part>(input, place);
    }
  }
}

Bounds draw_bounds(const Call& call, const SamplePlan& plan) {
  const int64_t drawn = plan.groups * kNeighbours;
  Key* sample = call.workspace.sample.reserve(drawn + kOverhang);
  const SampleGrid grid(plan.groups, call.input.size);
  const int64_t tasks = std::clamp<int64_t>(plan.groups / kGroupsWorthATask, 1, call.tasks);
  parallel_for(call.parallel, static_cast<int>(tasks), [&](int task) {
    const StandardFloats standard;
    with_type(call.input.dtype, [&](auto* part) {
      draw<std::remove_const_t<std::remove_pointer_t<decltype(part)>>>(
          call.input, grid, plan.groups * task / tasks, plan.groups * (task + 1) / tasks, sample);
    });
  });
  return sampled_bounds(call.kernels, plan, sample, call.workspace.keys.reserve(drawn + kOverhang));
}

// ---- What is not finite ----

void report_elements(const Call& call, int64_t* report) {
  float room[kTile];
  for (int64_t tile = 0; tile < call.tiles(); ++tile) {
    const float* values = acc_of(call, tile, room);
    for (int64_t i = 0; i < call.length_of(tile); ++i) {
      if (!finite(values[i]) && report[0]++ == 0) report[1] = tile * kTile + i;
    }
  }
}

// A sum is only finite where all parts are, so parts are looked at when a sum is not.
template <typename Part>
int32_t blame(const Input& input) {
  const auto* parts = static_cast<const Part*>(input.parts);
  for (int64_t part = 0; part < input.count; ++part) {
    const Part* elements = parts + part * input.stride;
    for (int64_t i = 0; i < input.size; ++i) {
      if (!finite(widen(elements[i]))) return static_cast<int32_t>(1 + part);
    }
  }
  return static_cast<int32_t>(1 + input.count);
}

bool fits(Key highest, int wire) {
  if (wire == HVDS_FLOAT32) return true;
  const float value = magnitude_of(highest);
  return finite(wire == HVDS_FLOAT16 ? widen(narrow<Half>(value)) : widen(narrow<Bfloat16>(value)));
}

// ---- The steps ----

// Selects, and returns the highest magnitude.
Key run(const Call& call) {
  const SamplePlan plan = plan_sample(call.input.size, call.rank());
  const Bounds bounds = draw_bounds(call, plan);
  const bool found = search(call, plan, bounds);
  if (!found) restore(call);
  Magnitudes magnitudes = found ? rank_candidates(call) : rank_all(call);
  magnitudes.mean = mean_of(call);
  const Thresholds thresholds = thresholds_of(call, magnitudes);
  if (found && candidates_suffice(call, thresholds)) {
    emit_candidates(call, bounds, magnitudes, thresholds);
  } else {
    restore(call);
    emit_all(call, magnitudes, thresholds);
  }
  return magnitudes.highest;
}

Key run(const Input& input, const Output& output, const Choice& choice, hvds_workspace& workspace,
        const hvds_parallel* parallel) {
  const StandardFloats standard;
  const auto tasks = static_cast<int>(std::clamp<int64_t>(input.size / kWorthATask, 1, thread_count(parallel)));
  return run({kernels_of(hvds_isa()), input, output, choice, workspace, parallel, tasks});
}

bool valid_dtype(int dtype) { return dtype >= HVDS_FLOAT32 && dtype <= HVDS_BFLOAT16; }

int select(const void* x, int dtype, int64_t size, const Choice& choice, void* values, int32_t* indices,
           int64_t* report, hvds_workspace* workspace, const hvds_parallel* parallel) try {
  const Input input{x, dtype, 1, size, nullptr, size};
  const Output output{values, dtype, indices, nullptr};
  if (!valid(input, output, workspace) || choice.kept < 0 || choice.kept > size) return HVDS_BAD_ARGUMENT;
  report[0] = 0;
  report[1] = -1;
  if (size == 0) return HVDS_OK;
  if (run(input, output, choice, *workspace, parallel) >= kInfinityKey) {
    report_elements({kernels_of(hvds_isa()), input, output, choice, *workspace, nullptr, 1}, report);
  }
  return HVDS_OK;
} catch (const std::bad_alloc&) {
  return HVDS_OUT_OF_MEMORY;
}

int feed_back(const Input& input, const Output& output, const Choice& choice, int32_t* culprit,
              hvds_workspace* workspace, const hvds_parallel* parallel) try {
  const bool kept_fits = 0 <= choice.kept && choice.kept <= input.size;
  if (!valid(input, output, workspace) || !kept_fits) return HVDS_BAD_ARGUMENT;
  *culprit = 0;
  if (input.size == 0) return HVDS_OK;
  const Key highest = run(input, output, choice, *workspace, parallel);
  *culprit = culprit_of(input, choice.kept > 0 ? output.dtype : HVDS_FLOAT32, highest);
  return HVDS_OK;
} catch (const std::bad_alloc&) {
  return HVDS_OUT_OF_MEMORY;
}

}  // namespace

bool valid(const Input& input, const Output& output, const hvds_workspace* workspace) {
  return valid_dtype(input.dtype) && valid_dtype(output.dtype) && input.count >= 1 && input.stride >= input.size &&
         input.size <= INT32_MAX && workspace != nullptr;
}

int32_t culprit_of(const Input& input, int wire, Key highest) {
  int32_t culprit = 0;
  if (highest >= kInfinityKey) {
    with_type(input.dtype, [&](auto* part) {
      culprit = blame<std::remove_const_t<std::remove_pointer_t<decltype(part)>>>(input);
    });
  } else if (!fits(highest, wire)) {
    culprit = static_cast<int32_t>(1 + input.count);  // the largest magnitude is always sent
  }
  return culprit;
}

const Kernels& kernels_of(int isa) {
#if defined(__x86_64__) && defined(__GNUC__)
  if (isa == HVDS_AVX512) return kAvx512Kernels;
  if (isa == HVDS_AVX2) return kAvx2Kernels;
#endif
  (void)isa;
  return kBaseKernels;
}

}  // namespace hvds

extern "C" hvds_workspace* hvds_workspace_create(void) { return new (std::nothrow) hvds_workspace; }

extern "C" void hvds_workspace_destroy(hvds_workspace* workspace) { delete workspace; }

extern "C" int hvds_topk(const void* x, int dtype, int64_t size, int64_t kept, void* values, int32_t* indices,
                         int64_t* report, hvds_workspace* workspace, const hvds_parallel* parallel) {
  return hvds::select(x, dtype, size, {kept, 0, 0}, values, indices, report, workspace, parallel);
}

extern "C" int hvds_mstopk(const void* x, int dtype, int64_t size, int64_t kept, int samplings, uint64_t seed,
                           void* values, int32_t* indices, int64_t* report, hvds_workspace* workspace,
                           const hvds_parallel* parallel) {
  if (samplings < 1) return HVDS_BAD_ARGUMENT;
  return hvds::select(x, dtype, size, {kept, samplings, seed}, values, indices, report, workspace, parallel);
}

extern "C" int hvds_feedback_topk(const void* parts, int dtype, int64_t count, int64_t stride, const float* residual,
                                  int64_t size, int64_t kept, int wire, void* values, int32_t* indices,
                                  float* residual_out, int32_t* culprit, hvds_workspace* workspace,
                                  const hvds_parallel* parallel) {
  return hvds::feed_back({parts, dtype, count, stride, residual, size}, {values, wire, indices, residual_out},
                         {kept, 0, 0}, culprit, workspace, parallel);
}

extern "C" int hvds_feedback_mstopk(const void* parts, int dtype, int64_t count, int64_t stride,
                                    const float* residual, int64_t size, int64_t kept, int samplings, uint64_t seed,
                                    int wire, void* values, int32_t* indices, float* residual_out, int32_t* culprit,
                                    hvds_workspace* workspace, const hvds_parallel* parallel) {
  if (samplings < 1) return HVDS_BAD_ARGUMENT;
  return hvds::feed_back({parts, dtype, count, stride, residual, size}, {values, wire, indices, residual_out},
                         {kept, samplings, seed}, culprit, workspace, parallel);
}
