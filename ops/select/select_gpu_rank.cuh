// After the pass: the candidates are collected in order, the magnitude of the rank sought is found among them digit by
// digit, and the thresholds of the winners are set.
#ifndef HVD_SPARSE_OPS_SELECT_GPU_RANK_CUH_
#define HVD_SPARSE_OPS_SELECT_GPU_RANK_CUH_

#include "select_gpu_scan.cuh"

namespace hvds {

// Where winners are searched: among the candidates or, if there are too few or too many of these, in the whole vector.
struct View {
  bool whole;
  uint32_t size;
};

__device__ inline View view_of(const Plan& plan, const Workspace& work) {
  if (plan.capacity == 0) return View{true, plan.size};
  const uint32_t candidates = work.offsets[plan.tiles];
  const bool whole = candidates < plan.rank || candidates > plan.capacity;
  return View{whole, whole ? plan.size : candidates};
}

template <typename Stored>
__device__ inline Key key_at(const View& view, const Workspace& work, const Stored* vector, uint32_t entry) {
  return view.whole ? key_of(widen(vector[entry])) : work.keys[entry];
}

__device__ inline Digits digits_of(const View& view, const State& state) {
  return make_digits(view.whole ? state.tally.lowest : state.bound, state.tally.highest);
}

// Copies the marked elements of `vector`, one warp per tile. The positions of the marks are first listed in shared
// memory, so that neighbouring lanes then read and write neighbouring entries, all at the same time.
template <typename Stored>
__global__ void __launch_bounds__(kThreads) gather_kernel(const Stored* vector, Plan plan, Workspace work) {
  constexpr uint32_t kSteps = kWordsPerTile / kWarp;
  __shared__ uint16_t lists[kWarps][kTile / kSteps];
  if (view_of(plan, work).whole) return;
  const uint32_t lane = threadIdx.x % kWarp;
  uint16_t* list = lists[threadIdx.x / kWarp];
  const uint32_t warps = gridDim.x * kWarps;
  for (uint32_t tile = blockIdx.x * kWarps + threadIdx.x / kWarp; tile < plan.tiles; tile += warps) {
    uint32_t entry = work.offsets[tile];
    if (entry == work.offsets[tile + 1]) continue;
    uint32_t marks[kSteps];
#pragma unroll
    for (uint32_t step = 0; step < kSteps; ++step) {
      marks[step] = work.bitmap[size_t(tile) * kWordsPerTile + step * kWarp + lane];
    }
#pragma unroll
    for (uint32_t step = 0; step < kSteps; ++step) {
      const uint32_t up_to = warp_sum_up_to(__popc(marks[step]));
      const uint32_t first = tile * kTile + step * (kTile / kSteps);
      uint32_t listed = up_to - __popc(marks[step]);
      for (uint32_t left = marks[step]; left != 0; left &= left - 1) {
        list[listed++] = uint16_t(lane * 32 + __ffs(left) - 1);
      }
      __syncwarp();
      const uint32_t count = __shfl_sync(kAllLanes, up_to, kWarp - 1);
      for (uint32_t i = lane; i < count; i += kWarp) {
        work.keys[entry + i] = key_of(widen(vector[first + list[i]]));
        work.indices[entry + i] = first + list[i];
      }
      __syncwarp();
      entry += count;
    }
  }
}

// Counts one entry per lane (if `counted`) in a histogram in shared memory. If a whole warp has equal bins, as is
// typical of vectors with many equal elements, it costs one addition.
__device__ inline void count_by_warp(uint32_t* histogram, uint32_t bin, bool counted) {
  const uint32_t lanes = __ballot_sync(kAllLanes, counted);
  if (lanes == 0) return;
  const int leader = __ffs(lanes) - 1;
  const uint32_t leading_bin = __shfl_sync(kAllLanes, bin, leader);
  const bool equal = __ballot_sync(kAllLanes, counted && bin == leading_bin) == lanes;
  if (equal && int(threadIdx.x % kWarp) == leader) atomicAdd(&histogram[bin], uint32_t(__popc(lanes)));
  if (!equal && counted) atomicAdd(&histogram[bin], 1u);
}

// Where the rank lies by its digits 0 to `digit`, from the histogram of the last one. Called by whole blocks.
template <int kBlock>
__device__ inline Place place_after(const Digits& digits, int digit, const Plan& plan, const State& state,
                                    uint32_t* histogram) {
  __syncthreads();
  for (int bin = threadIdx.x; bin < kBins; bin += kBlock) histogram[bin] = state.histograms[digit][bin];
  const Place before = digit == 0 ? Place{0, plan.rank} : state.places[digit - 1];
  const Bin bin = find_bin<kBlock>(histogram, before.rank);
  return narrowed(digits, digit, before, bin.number, bin.above);
}

// Histogram of one digit over the entries that share the preceding digits with the rank. Every block finds the place of
// the rank by the preceding digit itself, which saves a kernel.
template <typename Stored>
__global__ void __launch_bounds__(kThreads) histogram_kernel(const Stored* vector, Plan plan, Workspace work,
                                                             int digit) {
  __shared__ uint32_t histogram[kBins];
  State& state = *work.state;
  const View view = view_of(plan, work);
  const Digits digits = digits_of(view, state);
  Place place{0, plan.rank};
  if (digit > 0) {
    place = place_after<kThreads>(digits, digit - 1, plan, state, histogram);
    if (blockIdx.x == 0 && threadIdx.x == 0) state.places[digit - 1] = place;
  }
  clear_histogram<kThreads>(histogram);
  const uint32_t lane = threadIdx.x % kWarp;
  const size_t step = size_t(gridDim.x) * kThreads;
  for (size_t first = size_t(blockIdx.x) * kThreads + threadIdx.x - lane; first < view.size; first += step) {
    const uint32_t entry = uint32_t(first) + lane;
    const bool exists = entry < view.size;
    const Key key = exists ? key_at(view, work, vector, entry) : digits.base;
    count_by_warp(histogram, bin_of(digits, key, digit), exists && at_place(digits, key, digit, place));
  }
  __syncthreads();
  for (int bin = threadIdx.x; bin < kBins; bin += kThreads) {
    if (histogram[bin] != 0) atomicAdd(&state.histograms[digit][bin], histogram[bin]);
  }
}

// The float64 sum, in order, of non-negative float32 terms; valid in thread 0 of a lone block. All threads add if the
// order makes no difference, which is almost always the case.
__device__ inline double sum_in_order(const float* terms, uint32_t count) {
  __shared__ double sums[kLoneThreads / kWarp];
  __shared__ Key smallest_keys[kLoneThreads / kWarp];
  double sum = 0;
  Key smallest = kHighestKey;
  for (uint32_t i = threadIdx.x; i < count; i += kLoneThreads) {
    const Key key = key_of(terms[i]);
    sum += terms[i];
    if (key != 0) smallest = smaller(smallest, key);
  }
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    sum += __shfl_down_sync(kAllLanes, sum, distance);
    smallest = smaller(smallest, __shfl_down_sync(kAllLanes, smallest, distance));
  }
  if (threadIdx.x % kWarp == 0) {
    sums[threadIdx.x / kWarp] = sum;
    smallest_keys[threadIdx.x / kWarp] = smallest;
  }
  __syncthreads();
  if (threadIdx.x != 0) return 0;
  for (int warp = 1; warp < kLoneThreads / kWarp; ++warp) {
    sum += sums[warp];
    smallest = smaller(smallest, smallest_keys[warp]);
  }
  if (sum_has_no_order(sum, smallest)) return sum;
  sum = 0;
  for (uint32_t i = 0; i < count; ++i) sum += terms[i];
  return sum;
}

// One block sets the thresholds: of the exact selection, or with samplings > 0 of MSTopK.
__global__ void __launch_bounds__(kLoneThreads) decide_kernel(Plan plan, Workspace work, int samplings) {
  __shared__ uint32_t histogram[kBins];
  State& state = *work.state;
  const View view = view_of(plan, work);
  const Digits digits = digits_of(view, state);
  const Place place = place_after<kLoneThreads>(digits, kDigits - 1, plan, state, histogram);
  const Key edge = digits.base + place.prefix;
  const double total = work.block_sums == nullptr ? 0 : sum_in_order(work.block_sums, plan.tiles);
  if (threadIdx.x != 0) return;
  Thresholds thresholds = exact_thresholds(edge);
  if (work.block_sums != nullptr) {
    const float mean = float(total / plan.size);
    const bool all_fit = plan.kept == plan.size;
    thresholds = replay(mean, state.tally.lowest, state.tally.highest, edge, all_fit, samplings);
  }
  state.thresholds = thresholds;
  // Algorithm 1 may reach below the bound for candidates.
  state.whole = view.whole || thresholds.band < state.bound;
}

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_SELECT_GPU_RANK_CUH_
