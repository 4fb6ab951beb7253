// Finds the elements that reach a threshold from an earlier step (DCT-DP), in the pass that applies feedback.
#include <new>

#include "../common/cpu_features.h"
#include "select_cpu_call.h"
#include "select_cpu_input.h"

namespace hvds {
namespace {

bool valid_holding(const hvds_holding& holding, int64_t size) {
  return 1 <= holding.kept && holding.kept <= size && 1 <= holding.least && holding.least <= holding.most &&
         holding.most <= size;
}

// Sends the call.choice.kept largest if more elements reach the threshold than may be sent. All of them are candidates
// unless the scan has given up.
Key send_largest(const Call& call, Key bound) {
  const bool given_up = std::any_of(call.workspace.findings.begin(), call.workspace.findings.end(),
                                    [](const Finding& finding) { return finding.given_up; });
  if (given_up) restore(call);
  const Output output = send_exactly(call, call.choice.kept);
  const Call exact{call.kernels, call.input, output, call.choice, call.workspace, call.parallel, call.tasks};
  const Magnitudes magnitudes = given_up ? rank_all(exact) : rank_candidates(exact);
  const Thresholds thresholds = exact_thresholds(magnitudes.edge);
  if (given_up) emit_all(exact, magnitudes, thresholds);
  else emit_candidates(exact, {bound, bound, bound}, magnitudes, thresholds);
  return magnitudes.highest;
}

// Removes zeros from the elements that hvds_take_sent will return. An element was zero if both the value sent and the
// residual are zero.
template <typename Wire>
int64_t without_zeros(hvds_workspace& workspace, float* residual_out) {
  auto* values = reinterpret_cast<Wire*>(workspace.sent_values.data());
  int32_t* indices = workspace.sent_indices.data();
  int64_t count = 0;
  for (int64_t i = 0; i < workspace.sent_exactly; ++i) {
    const float value = widen(values[i]);
    if (key_of(value) == 0 && key_of(residual_out[indices[i]]) == 0) {
      residual_out[indices[i]] = value;
      continue;
    }
    values[count] = values[i];
    indices[count++] = indices[i];
  }
  return workspace.sent_exactly = count;
}

// Sends the `least` largest if fewer elements reach the threshold than should be sent, except zeros.
Key send_least(const Call& call, int64_t least, int64_t* sent) {
  const Output output = send_exactly(call, least);
  const Magnitudes magnitudes = run(call.input, output, {least, 0, 0}, call.workspace, call.parallel);
  *sent = least;
  if (magnitudes.edge > 0) return magnitudes.highest;
  with_type(output.dtype, [&](auto* wire) {
    *sent = without_zeros<std::remove_const_t<std::remove_pointer_t<decltype(wire)>>>(call.workspace,
                                                                                      output.residual_out);
  });
  return magnitudes.highest;
}

// Selects, and returns the highest magnitude of the elements examined.
Key run_held(const Call& call, const hvds_holding& holding, float* threshold, int64_t* sent, int32_t* clamped) {
  if (holding.due != 0 && holding.kept == call.input.size) {
    *threshold = 0;
  } else if (holding.due != 0) {
    const Output scratch = send_exactly(call, holding.kept);
    *threshold = magnitude_of(run(call.input, scratch, {holding.kept, 0, 0}, call.workspace, call.parallel).edge);
  }
  // Zeros never reach it, and non-finite elements always do.
  const Key bound = std::clamp(key_of(*threshold), Key{1}, kInfinityKey);
  const Found found = find_above(call, bound, holding.kept);
  *sent = found.count;
  if (!found.complete) {
    *sent = holding.most;
    *clamped = 1;
    return send_largest(call, bound);
  }
  send_found(call);
  if (found.count >= holding.least || bound == 1) return found.highest;  // a bound of 1 finds all but zeros
  const Key highest = send_least(call, holding.least, sent);
  *clamped = *sent > found.count ? 1 : 0;
  return highest;
}

}  // namespace
}  // namespace hvds

extern "C" int hvds_feedback_held(const void* parts, int dtype, int64_t count, int64_t stride, const float* residual,
                                  int64_t size, const hvds_holding* holding, int wire, float* threshold,
                                  float* residual_out, int32_t* culprit, int64_t* sent, int32_t* clamped,
                                  hvds_workspace* workspace, const hvds_parallel* parallel) try {
  const hvds::Input input{parts, dtype, count, stride, residual, size};
  const hvds::Output output{nullptr, wire, nullptr, residual_out};
  if (!hvds::valid(input, output, workspace) || !hvds::valid_holding(*holding, size) || residual_out == residual) {
    return HVDS_BAD_ARGUMENT;
  }
  *culprit = *clamped = 0;
  const hvds::StandardFloats standard;
  const hvds::Choice most{holding->most, 0, 0};
  const hvds::Call call{hvds::kernels_of(hvds_isa()), input, output, most, *workspace, parallel,
                        hvds::tasks_for(size, parallel)};
  const hvds::Key highest = hvds::run_held(call, *holding, threshold, sent, clamped);
  *culprit = hvds::culprit_of(input, *sent > 0 ? wire : static_cast<int>(HVDS_FLOAT32), highest);
  return HVDS_OK;
} catch (const std::bad_alloc&) {
  return HVDS_OUT_OF_MEMORY;
}
