// Shared by the selection kernels: element types, their input, their state on the device, steps of a warp or a block.
#ifndef HVD_SPARSE_OPS_SELECT_GPU_TYPES_CUH_
#define HVD_SPARSE_OPS_SELECT_GPU_TYPES_CUH_

#include <cuda_runtime.h>

#include "../common/elements.h"
#include "select_rules.h"

namespace hvds {

constexpr uint32_t kAllLanes = 0xffffffffu;
constexpr int kWarp = 32;
constexpr int kThreads = 256;  // per block, unless one block does all the work of a kernel
constexpr int kWarps = kThreads / kWarp;
constexpr int kLoneThreads = 1024;  // in such a block
constexpr uint32_t kRow = 4;        // adjacent elements that a thread reads at once
constexpr uint32_t kWordsPerTile = kTile / 32;

// The input: `count` parts [size], `stride` elements apart, and, unless null, residual [size].
template <typename Part>
struct Input {
  const Part* parts;
  const float* residual;
  int count;
  int64_t stride;
  uint32_t size;
};

template <typename Part>
__device__ inline float part_at(const Input<Part>& input, int part, uint32_t index) {
  return widen(input.parts[part * input.stride + index]);
}

// ((p_0 + p_1) + ...) + residual.
template <typename Part>
__device__ inline float sum_at(const Input<Part>& input, uint32_t index) {
  float sum = part_at(input, 0, index);
  for (int part = 1; part < input.count; ++part) sum += part_at(input, part, index);
  return input.residual == nullptr ? sum : sum + input.residual[index];
}

// The findings of one pass besides the candidates.
struct Tally {
  Key highest;
  Key lowest;
  uint32_t nonfinite;
  uint32_t first_nonfinite;
  uint32_t culprit;  // the lowest 1 + number of a part that is not finite; 1 + count if only the sum is not
};

__device__ inline Tally empty_tally() { return Tally{0, ~Key{0}, 0, ~0u, ~0u}; }

__device__ inline Tally merged(const Tally& a, const Tally& b) {
  Tally tally;
  tally.highest = larger(a.highest, b.highest);
  tally.lowest = smaller(a.lowest, b.lowest);
  tally.nonfinite = a.nonfinite + b.nonfinite;
  tally.first_nonfinite = smaller(a.first_nonfinite, b.first_nonfinite);
  tally.culprit = smaller(a.culprit, b.culprit);
  return tally;
}

// The state of one selection. Every field is written in one kernel and read only in later ones; fields written by
// several blocks (the tally and the histograms) use atomic operations whose order does not matter.
struct State {
  Tally tally;
  Key bound;              // elements that reach it are candidates
  Place places[kDigits];  // places[i]: where the rank lies by its digits 0 to i
  Thresholds thresholds;
  bool whole;  // the winners are searched in the whole vector
  uint32_t histograms[kDigits][kBins];
};

// The caller's memory, divided up. Candidates beyond the capacity are counted but not stored.
struct Workspace {
  State* state;
  uint32_t* bitmap;     // [tiles][kWordsPerTile]: bit i of word w marks element 32 w + i of the tile; null: no candidates
  uint32_t* offsets;    // [tiles + 1]: candidates per tile, then their exclusive prefix sums; the last is their total
  Key* keys;            // [capacity]: the candidates, in ascending order of index
  uint32_t* indices;    // [capacity]
  float* block_sums;    // [tiles]: sums of magnitudes; null: not wanted
  uint64_t* counts;     // [chunks + 1]: winners per chunk (pack_counts), then their exclusive prefix sums
  void* prefix_memory;  // temporary memory of the prefix sums
  size_t prefix_bytes;
};

// Inclusive sum over the lanes of a warp.
__device__ inline uint32_t warp_sum_up_to(uint32_t value) {
  const int lane = threadIdx.x % kWarp;
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const uint32_t before = __shfl_up_sync(kAllLanes, value, distance);
    if (lane >= distance) value += before;
  }
  return value;
}

// The bin, from the highest down, that holds the entry of a given rank, and the number of entries in the bins above it.
struct Bin {
  uint32_t number;
  uint32_t above;
};

// Finds the bin that holds the entry of rank `rank` (>= 1) in a histogram in shared memory that counts at least that
// many; called by all threads of a block of kBlock, with no __syncthreads needed after the last write to the histogram.
template <int kBlock>
__device__ Bin find_bin(const uint32_t* histogram, uint32_t rank) {
  constexpr int kShare = kBins / kBlock;
  __shared__ uint32_t warp_sums[kBlock / kWarp];
  __shared__ Bin found;
  __syncthreads();
  const int top = kBins - 1 - int(threadIdx.x) * kShare;
  uint32_t sum = 0;
  for (int i = 0; i < kShare; ++i) sum += histogram[top - i];
  const uint32_t up_to = warp_sum_up_to(sum);
  if (threadIdx.x % kWarp == kWarp - 1) warp_sums[threadIdx.x / kWarp] = up_to;
  __syncthreads();
  uint32_t above = up_to - sum;
  for (int warp = 0; warp < int(threadIdx.x) / kWarp; ++warp) above += warp_sums[warp];
  if (above < rank && rank <= above + sum) {
    int bin = top;
    for (; rank > above + histogram[bin]; --bin) above += histogram[bin];
    found = Bin{uint32_t(bin), above};
  }
  __syncthreads();
  return found;  // the next call waits for all threads before it writes here
}

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_SELECT_GPU_TYPES_CUH_
