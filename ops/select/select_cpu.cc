// The interface of select.h, and the sequence of the steps.
#include <new>

#include "../common/cpu_features.h"
#include "select_cpu_call.h"
#include "select_cpu_input.h"

namespace hvds {
namespace {

constexpr int64_t kWorthATask = 131072;      // elements for which waking a thread pays off
constexpr int64_t kGroupsWorthATask = 4096;  // the same, for random reads

bool finite(float value) { return key_of(value) < kInfinityKey; }

// ---- The sample ----

Bounds draw_bounds(const Call& call, const SamplePlan& plan) {
  const int64_t drawn = plan.groups * kNeighbours;
  Key* sample = call.workspace.sample.reserve(drawn + kOverhang);
  const SampleGrid grid(plan.groups, call.input.size);
  const int64_t tasks = std::clamp<int64_t>(plan.groups / kGroupsWorthATask, 1, call.tasks);
  parallel_for(call.parallel, static_cast<int>(tasks), [&](int task) {
    const StandardFloats standard;
    draw(call.input, plan.groups * task / tasks, plan.groups * (task + 1) / tasks, kNeighbours,
         [&](int64_t group) { return grid.position(group); }, sample);
  });
  return sampled_bounds(call.kernels, plan, sample, call.workspace.keys.reserve(drawn + kOverhang));
}

// ---- Non-finite elements ----

void report_elements(const Call& call, int64_t* report) {
  float room[kTile];
  for (int64_t tile = 0; tile < call.tiles(); ++tile) {
    const float* values = acc_of(call, tile, room);
    for (int64_t i = 0; i < call.length_of(tile); ++i) {
      if (!finite(values[i]) && report[0]++ == 0) report[1] = tile * kTile + i;
    }
  }
}

// A sum is finite only if all parts are, so the parts are examined only if a sum is not.
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

Magnitudes run(const Call& call) {
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
  return magnitudes;
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
  if (run(input, output, choice, *workspace, parallel).highest >= kInfinityKey) {
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
  const Key highest = run(input, output, choice, *workspace, parallel).highest;
  *culprit = culprit_of(input, choice.kept > 0 ? output.dtype : HVDS_FLOAT32, highest);
  return HVDS_OK;
} catch (const std::bad_alloc&) {
  return HVDS_OUT_OF_MEMORY;
}

}  // namespace

int tasks_for(int64_t size, const hvds_parallel* parallel) {
  return static_cast<int>(std::clamp<int64_t>(size / kWorthATask, 1, thread_count(parallel)));
}

Magnitudes run(const Input& input, const Output& output, const Choice& choice, hvds_workspace& workspace,
               const hvds_parallel* parallel) {
  const StandardFloats standard;
  const int tasks = tasks_for(input.size, parallel);
  return run({kernels_of(hvds_isa()), input, output, choice, workspace, parallel, tasks});
}

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
