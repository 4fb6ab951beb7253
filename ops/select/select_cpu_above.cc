// Finds the elements that reach one bound, in the pass that applies feedback: their number is known only after it.
#include <cstring>

#include "../common/cpu_features.h"
#include "select_cpu_call.h"

namespace hvds {
namespace {

constexpr int64_t kByCandidates = -1;  // of hvds_workspace::sent_exactly

}  // namespace

Found find_above(const Call& call, Key bound, int64_t expected) {
  const int64_t size = call.input.size, most = call.choice.kept;
  const double share = static_cast<double>(expected) / static_cast<double>(size);
  const int64_t capacity = std::min(size, most + 4 * kTile);
  search(call, SamplePlan{0, 0, 0, 0, share, capacity}, {bound, bound, bound});
  Found found{true, 0, 0};
  for (const Finding& finding : call.workspace.findings) {
    found.complete = found.complete && finding.sorted_out == 0;
    found.count += finding.candidates.count;
    found.highest = std::max(found.highest, finding.split.highest);
  }
  found.complete = found.complete && found.count <= most;
  return found;
}

void send_found(const Call& call) { call.workspace.sent_exactly = kByCandidates; }

Output send_exactly(const Call& call, int64_t count) {
  hvds_workspace& workspace = call.workspace;
  const int64_t room = count + 1;  // at least 1, as memcpy must not get a null pointer even for 0 bytes
  workspace.sent_exactly = count;
  return {workspace.sent_values.reserve(room), call.output.dtype, workspace.sent_indices.reserve(room),
          call.output.residual_out};
}

}  // namespace hvds

extern "C" void hvds_take_sent(const hvds_workspace* workspace, int wire, void* values, int32_t* indices) {
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
