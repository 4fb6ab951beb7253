// Finds the elements above a sampled magnitude (gradient dropping), in the pass that applies feedback.
#include <new>

#include "../common/cpu_features.h"
#include "select_cpu_call.h"
#include "select_cpu_input.h"

namespace hvds {
namespace {

bool valid_sampling(const hvds_sampling& sampling, int64_t size) {
  return sampling.samples >= 1 && sampling.rank >= 0 && 0 <= sampling.least && sampling.least <= sampling.most &&
         0 <= sampling.kept && sampling.kept <= size;
}

// The least magnitude that is sent. Non-finite elements are always found.
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

// Selects, and returns the highest magnitude of the elements examined.
Key run_sampled(const Input& input, const hvds_sampling& sampling, const Output& output, hvds_workspace& workspace,
                const hvds_parallel* parallel, int64_t* sent) {
  const StandardFloats standard;
  const Choice most{std::min(sampling.most, input.size), 0, 0};
  const Call call{kernels_of(hvds_isa()), input, output, most, workspace, parallel, tasks_for(input.size, parallel)};
  const Found found = find_above(call, least_sent(call, sampling), sampling.kept);
  if (found.complete && found.count >= sampling.least) {
    send_found(call);
    *sent = found.count;
    return found.highest;
  }
  *sent = sampling.kept;
  return run(input, send_exactly(call, sampling.kept), {sampling.kept, 0, 0}, workspace, parallel).highest;
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
