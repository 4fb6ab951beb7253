// What exceeds the magnitude that a random sample gives (gradient dropping), found in the pass that feeds back.
#include <cstring>
#include <new>

#include "../common/cpu_features.h"
#include "select_cpu_call.h"
#include "select_cpu_input.h"

namespace hvds {
namespace {

constexpr int64_t kByCandidates = -1;  // of hvds_workspace::sent_exactly

bool valid_sampling(const hvds_sampling& sampling, int64_t size) {
  return sampling.samples >= 1 && sampling.rank >= 0 && 0 <= sampling.least && sampling.least <= sampling.most &&
         0 <= sampling.kept && sampling.kept <= size;
}

// The least magnitude that is sent. What is not finite is always found.
Key least_sent(const Call& call, const hvds_sampling& sampling) {
  const int64_t size = call.input.size;
  const int64_t drawn = std::min(sampling.samples, size);
  if (sampling.rank >= drawn) return 0;
  const uint64_t first = splitmix64(sampling.seed);
  const auto position = [&](int64_t number) -> int64_t {
    return drawn == size ? number : random_below(first + static_cast<uint64_t>(number), static_cast<uint32_t>(size));
  };
  Key* sample = call.workspace.sample.reserve(drawn + kOverhang);
  draw(call.input, 0, drawn, 1, position, sample);
  Key* scratch = call.workspace.keys.reserve(drawn + kOverhang);
  return std::min(ranked_key(call.kernels, sample, drawn, sampling.rank + 1, scratch) + 1, kInfinityKey);
}

// What a scan with one bound for all has found.
struct Found {
  bool misled;
  int64_t sent;
  Key highest;
};

Found found_above(const Call& call, Key bound, const hvds_sampling& sampling) {
  const double share = static_cast<double>(sampling.kept) / static_cast<double>(call.input.size);
  const int64_t capacity = std::min(call.input.size, sampling.most + 4 * kTile);
  search(call, SamplePlan{0, 0, 0, 0, share, capacity}, {bound, bound, bound});
  Found found{false, 0, 0};
  for (const Finding& finding : call.workspace.findings) {
    found.misled = found.misled || finding.sorted_out > 0;
    found.sent += finding.candidates.count;
    found.highest = std::max(found.highest, finding.split.highest);
  }
  found.misled = found.misled || found.sent < sampling.least || found.sent > sampling.most;
  return found;
}

// Selects, and returns the highest magnitude of those that were looked at.
Key run_sampled(const Input& input, const hvds_sampling& sampling, const Output& output, hvds_workspace& workspace,
                const hvds_parallel* parallel, int64_t* sent) {
  const StandardFloats standard;
  const Choice any{1, 0, 0};
  const Call call{kernels_of(hvds_isa()), input, output, any, workspace, parallel, tasks_for(input.size, parallel)};
  const Found found = found_above(call, least_sent(call, sampling), sampling);
  *sent = found.sent;
  workspace.sent_exactly = kByCandidates;
  if (!found.misled) return found.highest;
  const int64_t room = sampling.kept + 1;  // never none, as what copies nothing may not be given a null pointer
  const Output exact{workspace.sent_values.reserve(room), output.dtype, workspace.sent_indices.reserve(room),
                     output.residual_out};
  *sent = workspace.sent_exactly = sampling.kept;
  return run(input, exact, {sampling.kept, 0, 0}, workspace, parallel);
}

}  // namespace
}  // namespace hvds

extern "C" int hvds_feedback_sampled(const void* parts, int dtype, int64_t count, int64_t stride,
                                     const float* residual, int64_t size, const hvds_sampling* sampling, int wire,
                                     float* residual_out, int32_t* culprit, int64_t* sent, hvds_workspace* workspace,
                                     const hvds_parallel* parallel) try {
  const hvds::Input input{parts, dtype, count, stride, residual, size};
  const hvds::Output output{nullptr, wire, nullptr, residual_out};
  const bool in_place = residual_out == residual && size > 0;
  if (!hvds::valid(input, output, workspace) || !hvds::valid_sampling(*sampling, size) || in_place) {
    return HVDS_BAD_ARGUMENT;
  }
  *culprit = 0;
  *sent = workspace->sent_exactly = 0;
  if (size == 0) return HVDS_OK;
  const hvds::Key highest = hvds::run_sampled(input, *sampling, output, *workspace, parallel, sent);
  *culprit = hvds::culprit_of(input, *sent > 0 ? wire : static_cast<int>(HVDS_FLOAT32), highest);
  return HVDS_OK;
} catch (const std::bad_alloc&) {
  return HVDS_OUT_OF_MEMORY;
}

extern "C" void hvds_take_sampled(const hvds_workspace* workspace, int wire, void* values, int32_t* indices) {
  const int64_t item = wire == HVDS_FLOAT32 ? 4 : 2;
  if (workspace->sent_exactly != hvds::kByCandidates) {
    const auto count = static_cast<size_t>(workspace->sent_exactly);
    if (count == 0) return;
    std::memcpy(values, workspace->sent_values.data(), count * static_cast<size_t>(item));
    std::memcpy(indices, workspace->sent_indices.data(), count * sizeof *indices);
    return;
  }
  const hvds::StandardFloats standard;
  const hvds::Kernels& kernels = hvds::kernels_of(hvds_isa());
  int64_t at = 0;
  for (const hvds::Finding& finding : workspace->findings) {
    const hvds::Candidates& found = finding.candidates;
    std::copy_n(found.index, found.count, indices + at);
    kernels.narrow[wire](found.value, found.count, static_cast<char*>(values) + at * item);
    at += found.count;
  }
}
