// The last step: winners are counted per chunk of entries and, after a prefix sum of the counts, written in order.
#ifndef HVD_SPARSE_OPS_SELECT_GPU_EMIT_CUH_
#define HVD_SPARSE_OPS_SELECT_GPU_EMIT_CUH_

#include "select_gpu_rank.cuh"

namespace hvds {

// Like view_of, after the decision.
__device__ inline View final_view_of(const Plan& plan, const Workspace& work) {
  const bool whole = work.state->whole;
  return View{whole, whole ? plan.size : work.offsets[plan.tiles]};
}

// The winning lanes of a warp that examines 32 entries.
struct Ballots {
  uint32_t sure;
  uint32_t band;
};

template <typename Stored>
__device__ inline Ballots look_at(const View& view, const Workspace& work, const Stored* vector,
                                  const Thresholds& thresholds, uint32_t entry) {
  const bool exists = entry < view.size;
  const Key key = exists ? key_at(view, work, vector, entry) : 0;
  const bool sure = exists && key >= thresholds.sure;
  const bool band = exists && !sure && key >= thresholds.band;
  return Ballots{__ballot_sync(kAllLanes, sure), __ballot_sync(kAllLanes, band)};
}

// Chunks are distributed over blocks first, so that even a few occupy all multiprocessors.
__device__ inline uint32_t first_chunk() { return blockIdx.x + threadIdx.x / kWarp * gridDim.x; }
__device__ inline uint32_t chunk_step() { return gridDim.x * kWarps; }

// Where properties of the data are reported; each may be null. `culprit`: see select.h; `report`: the number of
// elements that are not finite and the index of the first.
struct Findings {
  int32_t* culprit;
  int64_t* report;
};

__device__ inline void tell(const Tally& tally, const Findings& findings) {
  const bool finite = tally.nonfinite == 0;
  if (findings.culprit != nullptr) *findings.culprit = finite ? 0 : int32_t(tally.culprit);
  if (findings.report == nullptr) return;
  findings.report[0] = tally.nonfinite;
  findings.report[1] = finite ? -1 : int64_t(tally.first_nonfinite);
}

template <typename Stored>
__global__ void __launch_bounds__(kThreads) count_kernel(const Stored* vector, Plan plan, Workspace work,
                                                         Findings findings) {
  const View view = final_view_of(plan, work);
  const Thresholds thresholds = work.state->thresholds;
  const uint32_t lane = threadIdx.x % kWarp;
  if (blockIdx.x == 0 && threadIdx.x == 0) tell(work.state->tally, findings);
  for (uint32_t chunk = first_chunk(); chunk < plan.chunks; chunk += chunk_step()) {
    uint32_t sure = 0;
    uint32_t band = 0;
    const uint32_t end = smaller((chunk + 1) * kChunk, view.size);
#pragma unroll 4
    for (uint32_t first = chunk * kChunk; first < end; first += kWarp) {
      const Ballots ballots = look_at(view, work, vector, thresholds, first + lane);
      sure += __popc(ballots.sure);
      band += __popc(ballots.band);
    }
    if (lane == 0) work.counts[chunk] = pack_counts(sure, band);
  }
}

// Where the winners go: values and indices [plan.kept]. `residual_out` (null: not wanted) holds the sums that were
// selected from; those of the winners are replaced by what rounding to Wire loses. If that is infinite although all
// sums are finite, `culprit` (null: not wanted) becomes `overflow`.
template <typename Wire>
struct Output {
  Wire* values;
  int32_t* indices;
  float* residual_out;
  int32_t* culprit;
  int32_t overflow;
};

template <typename Stored, typename Wire>
__device__ inline Wire wire_of(Stored value) {
  if constexpr (std::is_same<Stored, Wire>::value) {
    return value;
  } else {
    return narrow<Wire>(widen(value));
  }
}

template <typename Stored, typename Wire>
__device__ inline void emit(const Stored* vector, const Tally& tally, const Output<Wire>& output, uint32_t index,
                            uint32_t position) {
  const Stored value = vector[index];
  const Wire wire = wire_of<Stored, Wire>(value);
  output.values[position] = wire;
  output.indices[position] = int32_t(index);
  if (output.residual_out == nullptr) return;
  const float lost = widen(value) - widen(wire);
  output.residual_out[index] = lost;
  if (key_of(lost) >= kInfinityKey && tally.nonfinite == 0) atomicMax(output.culprit, output.overflow);
}

// `vector` may be output.residual_out: each element is read by the one thread that may replace it.
template <typename Stored, typename Wire>
__global__ void __launch_bounds__(kThreads) emit_kernel(const Stored* vector, Plan plan, Workspace work, uint64_t seed,
                                                        Output<Wire> output) {
  const View view = final_view_of(plan, work);
  const Thresholds thresholds = work.state->thresholds;
  const Window window = make_window(work.counts[plan.chunks], plan.kept, thresholds.literal, seed);
  const uint32_t lane = threadIdx.x % kWarp;
  const uint32_t lower_lanes = (1u << lane) - 1;
  for (uint32_t chunk = first_chunk(); chunk < plan.chunks; chunk += chunk_step()) {
    uint32_t sure = sure_count(work.counts[chunk]);
    uint32_t band = band_count(work.counts[chunk]);
    const uint32_t end = smaller((chunk + 1) * kChunk, view.size);
#pragma unroll 4
    for (uint32_t first = chunk * kChunk; first < end; first += kWarp) {
      const uint32_t entry = first + lane;
      const Ballots ballots = look_at(view, work, vector, thresholds, entry);
      const uint32_t sure_before = sure + __popc(ballots.sure & lower_lanes);
      const uint32_t band_before = band + __popc(ballots.band & lower_lanes);
      const bool is_sure = (ballots.sure >> lane & 1u) != 0;
      const bool is_band = (ballots.band >> lane & 1u) != 0 && band_wins(window, band_before);
      if (is_sure || is_band) {
        const uint32_t index = view.whole ? entry : work.indices[entry];
        const uint32_t position = is_sure ? sure_position(window, sure_before, band_before)
                                          : band_position(window, sure_before, band_before);
        emit(vector, work.state->tally, output, index, position);
      }
      sure += __popc(ballots.sure);
      band += __popc(ballots.band);
    }
  }
}

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_SELECT_GPU_EMIT_CUH_
