// The single pass over memory: parts and residual are added, the sum is written, and possible winners are marked.
#ifndef HVD_SPARSE_OPS_SELECT_GPU_SCAN_CUH_
#define HVD_SPARSE_OPS_SELECT_GPU_SCAN_CUH_

#include <type_traits>

#include "select_gpu_types.cuh"

namespace hvds {

// ---- Before the pass: a bound that all winners reach ----

// Called by all threads of a block.
template <int kBlock>
__device__ inline void clear_histogram(uint32_t* histogram) {
  for (int bin = threadIdx.x; bin < kBins; bin += kBlock) histogram[bin] = 0;
  __syncthreads();
}

// One block resets the state and finds the bound: the sample's magnitude of rank plan.sample_rank, rounded down to its
// first two digits.
template <typename Part>
__global__ void __launch_bounds__(kLoneThreads) bound_kernel(Input<Part> input, Plan plan, Workspace work) {
  constexpr int kGroups = kSampleGroups / kLoneThreads;
  __shared__ uint32_t histogram[kBins];
  State& state = *work.state;
  for (int i = threadIdx.x; i < kDigits * kBins; i += kLoneThreads) state.histograms[i / kBins][i % kBins] = 0;
  if (threadIdx.x == 0) {
    state.tally = empty_tally();
    state.bound = 0;
    state.thresholds = exact_thresholds(kHighestKey);
    state.whole = true;
    work.offsets[plan.tiles] = 0;
    work.counts[plan.chunks] = 0;
  }
  if (plan.capacity == 0) return;

  Key keys[kGroups][kNeighbours];
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    const uint32_t position = sample_position(group * kLoneThreads + threadIdx.x, plan.size);
#pragma unroll
    for (uint32_t i = 0; i < kNeighbours; ++i) keys[group][i] = key_of(sum_at(input, position + i));
  }
  const Digits digits = make_digits(0, kHighestKey);
  Place place{0, plan.sample_rank};
  for (int digit = 0; digit < kDigits - 1; ++digit) {
    clear_histogram<kLoneThreads>(histogram);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (uint32_t i = 0; i < kNeighbours; ++i) {
        const Key key = keys[group][i];
        if (at_place(digits, key, digit, place)) atomicAdd(&histogram[bin_of(digits, key, digit)], 1u);
      }
    }
    const Bin bin = find_bin<kLoneThreads>(histogram, place.rank);
    place = narrowed(digits, digit, place, bin.number, bin.above);
  }
  if (threadIdx.x == 0) state.bound = place.prefix << digits.shift[kDigits - 2];
}

// ---- The pass ----

// Half a warp reads a tile, row by row of 64 elements, each thread the same four of the mean's 64 lanes: so the lanes
// are added in order, in registers. Eight rows are in flight at a time.
constexpr uint32_t kTeam = kLanes / kRow;
constexpr uint32_t kBatch = 8;
constexpr uint32_t kBatchElements = kBatch * kLanes;
constexpr uint32_t kTilesPerBlock = kThreads / kTeam;

template <typename T>
struct alignas(kRow * sizeof(T)) Row {
  T at[kRow];
};

// How a row of four is read and written: at once, one by one, or one by one up to the end of the vector.
enum class Access { kRow, kElements, kGuarded };

// How many of the elements from `index` on exist, at most a row of them.
__device__ inline uint32_t row_length(uint32_t index, uint32_t size) {
  return index < size ? smaller(size - index, uint32_t(kRow)) : 0;
}

template <Access kAccess, typename T>
__device__ inline Row<T> load_row(const T* from, uint32_t length) {
  if constexpr (kAccess == Access::kRow) {
    return *reinterpret_cast<const Row<T>*>(from);
  } else {
    Row<T> row = {};
#pragma unroll
    for (uint32_t i = 0; i < kRow; ++i) {
      if (kAccess == Access::kElements || i < length) row.at[i] = from[i];
    }
    return row;
  }
}

template <Access kAccess>
__device__ inline void store_row(float* to, const Row<float>& row, uint32_t length) {
  if constexpr (kAccess == Access::kRow) {
    *reinterpret_cast<Row<float>*>(to) = row;
  } else {
#pragma unroll
    for (uint32_t i = 0; i < kRow; ++i) {
      if (kAccess == Access::kElements || i < length) to[i] = row.at[i];
    }
  }
}

// Calls body with the fastest access that `vector` allows; if there are several parts, only some rows may be aligned.
template <bool kWhole, typename T, typename Body>
__device__ inline void with_access(const T* vector, Body&& body) {
  if constexpr (!kWhole) {
    body(std::integral_constant<Access, Access::kGuarded>());
  } else if (reinterpret_cast<uintptr_t>(vector) % sizeof(Row<T>) == 0) {
    body(std::integral_constant<Access, Access::kRow>());
  } else {
    body(std::integral_constant<Access, Access::kElements>());
  }
}

// Adds, element by element, the rows of `vector` that start at `start` to `sums`; with kFirst, sets them instead.
template <bool kWhole, bool kFirst, typename T>
__device__ inline void add_rows(const T* vector, uint32_t start, uint32_t size, Row<float> (&sums)[kBatch]) {
  with_access<kWhole>(vector, [&](auto access) {
#pragma unroll
    for (uint32_t row = 0; row < kBatch; ++row) {
      const uint32_t index = start + row * kLanes;
      const Row<T> values = load_row<decltype(access)::value>(vector + index, row_length(index, size));
#pragma unroll
      for (uint32_t i = 0; i < kRow; ++i) {
        const float value = widen(values.at[i]);
        sums[row].at[i] = kFirst ? value : sums[row].at[i] + value;
      }
    }
  });
}

template <bool kWhole>
__device__ inline void store_rows(float* vector, uint32_t start, uint32_t size, const Row<float> (&sums)[kBatch]) {
  with_access<kWhole>(vector, [&](auto access) {
#pragma unroll
    for (uint32_t row = 0; row < kBatch; ++row) {
      const uint32_t index = start + row * kLanes;
      store_row<decltype(access)::value>(vector + index, sums[row], row_length(index, size));
    }
  });
}

// What a thread accumulates from its part of one tile.
struct Strip {
  float lanes[kRow] = {0, 0, 0, 0};
  uint32_t passing = 0;
};

// Processes the rows from `start` on; returns which elements reach the bound, four bits per row.
template <bool kWhole>
__device__ inline uint32_t weigh_rows(const Row<float> (&sums)[kBatch], uint32_t start, uint32_t size, Key bound,
                                      Strip* strip, Tally* tally) {
  uint32_t marks = 0;
#pragma unroll
  for (uint32_t row = 0; row < kBatch; ++row) {
    const uint32_t length = kWhole ? kRow : row_length(start + row * kLanes, size);
#pragma unroll
    for (uint32_t i = 0; i < kRow; ++i) {
      if (!kWhole && i >= length) continue;
      const Key key = key_of(sums[row].at[i]);
      strip->lanes[i] += magnitude_of(key);
      tally->highest = larger(tally->highest, key);
      tally->lowest = smaller(tally->lowest, key);
      marks |= uint32_t(key >= bound) << (kRow * row + i);
    }
  }
  strip->passing += __popc(marks);
  return marks;
}

// Eight threads hold four bits of each of eight rows; transposes them so that thread i holds the 32 bits of row i.
__device__ inline uint32_t transpose_marks(uint32_t marks) {
  constexpr uint32_t kKept[3] = {0x0000ffffu, 0x00ff00ffu, 0x0f0f0f0fu};
#pragma unroll
  for (int step = 0; step < 3; ++step) {
    const int partner = 4 >> step;
    const int shift = 16 >> step;
    const uint32_t other = __shfl_xor_sync(kAllLanes, marks, partner);
    const bool upper = (threadIdx.x & partner) != 0;
    marks = upper ? (marks & ~kKept[step]) | (other >> shift & kKept[step])
                  : (marks & kKept[step]) | (other & kKept[step]) << shift;
  }
  return marks;
}

// Sum of the 64 lanes of a tile, folded by halves 32, 16, 8, 4, 2, 1; valid in the first thread of the team.
__device__ inline float fold_lanes(const float (&lanes)[kRow]) {
  float folded[kRow];
#pragma unroll
  for (uint32_t i = 0; i < kRow; ++i) {
    folded[i] = lanes[i];
    for (uint32_t distance = kTeam / 2; distance > 0; distance /= 2) {
      folded[i] += __shfl_down_sync(kAllLanes, folded[i], distance, kTeam);
    }
  }
  return (folded[0] + folded[2]) + (folded[1] + folded[3]);
}

__device__ inline uint32_t sum_over_team(uint32_t value) {
  for (uint32_t distance = kTeam / 2; distance > 0; distance /= 2) {
    value += __shfl_down_sync(kAllLanes, value, distance, kTeam);
  }
  return value;
}

// The tally, with the non-finite elements of a thread's part of a tile, from `start` on, added. Rare, so its speed does
// not matter.
template <typename Part>
__device__ __noinline__ Tally with_nonfinite(Tally tally, Input<Part> input, const float* sums, uint32_t start) {
  for (uint32_t i = 0; i < kTile / kTeam; ++i) {
    const uint32_t index = start + i / kRow * kLanes + i % kRow;
    if (index >= input.size) continue;
    const float sum = sums == nullptr ? sum_at(input, index) : sums[index];
    if (key_of(sum) < kInfinityKey) continue;
    int part = 0;
    while (part < input.count && key_of(part_at(input, part, index)) < kInfinityKey) ++part;
    ++tally.nonfinite;
    tally.first_nonfinite = smaller(tally.first_nonfinite, index);
    tally.culprit = smaller(tally.culprit, uint32_t(part + 1));
  }
  return tally;
}

// Called by whole warps; unless kWhole, a team whose tile does not exist reads and writes nothing. `sums` may be null.
template <bool kWhole, typename Part>
__device__ inline void scan_tile(const Input<Part>& input, float* sums, const Workspace& work, uint32_t tile,
                                 Tally* tally) {
  const uint32_t member = threadIdx.x % kTeam;
  const bool exists = size_t(tile) * kTile < input.size;
  const Key bound = work.state->bound;
  Strip strip;
#pragma unroll 1
  for (uint32_t batch = 0; batch < kTile / kBatchElements; ++batch) {
    const uint32_t start = tile * kTile + batch * kBatchElements + member * kRow;
    Row<float> rows[kBatch];
    const Part* part = input.parts;
    add_rows<kWhole, true>(part, start, input.size, rows);
#pragma unroll 1
    for (int others = input.count - 1; others > 0; --others) {
      part += input.stride;
      add_rows<kWhole, false>(part, start, input.size, rows);
    }
    if (input.residual != nullptr) add_rows<kWhole, false>(input.residual, start, input.size, rows);
    if (sums != nullptr) store_rows<kWhole>(sums, start, input.size, rows);
    uint32_t marks = weigh_rows<kWhole>(rows, start, input.size, bound, &strip, tally);
    if (work.bitmap == nullptr) continue;
    marks = transpose_marks(marks);
    // Thread 8 h + i of the team now holds the marks of elements 32 h to 32 h + 31 of row i.
    const uint32_t word = batch * (kBatchElements / 32) + member % 8 * 2 + member / 8;
    if (exists) work.bitmap[size_t(tile) * kWordsPerTile + word] = marks;
  }
  if (tally->highest >= kInfinityKey) *tally = with_nonfinite(*tally, input, sums, tile * kTile + member * kRow);
  const float lanes_sum = fold_lanes(strip.lanes);
  const uint32_t passing = sum_over_team(strip.passing);
  if (member != 0 || !exists) return;
  work.offsets[tile] = passing;
  if (work.block_sums != nullptr) work.block_sums[tile] = lanes_sum;
}

__device__ inline Tally tally_from(const Tally& tally, int distance) {
  Tally other;
  other.highest = __shfl_down_sync(kAllLanes, tally.highest, distance);
  other.lowest = __shfl_down_sync(kAllLanes, tally.lowest, distance);
  other.nonfinite = __shfl_down_sync(kAllLanes, tally.nonfinite, distance);
  other.first_nonfinite = __shfl_down_sync(kAllLanes, tally.first_nonfinite, distance);
  other.culprit = __shfl_down_sync(kAllLanes, tally.culprit, distance);
  return other;
}

// Adds the tallies of a block's threads to the state, with one set of atomic operations per block.
__device__ inline void commit_tally(Tally tally, State* state) {
  __shared__ Tally warp_tallies[kWarps];
  for (int distance = kWarp / 2; distance > 0; distance /= 2) tally = merged(tally, tally_from(tally, distance));
  if (threadIdx.x % kWarp == 0) warp_tallies[threadIdx.x / kWarp] = tally;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int warp = 1; warp < kWarps; ++warp) tally = merged(tally, warp_tallies[warp]);
  atomicMax(&state->tally.highest, tally.highest);
  atomicMin(&state->tally.lowest, tally.lowest);
  if (tally.nonfinite == 0) return;
  atomicAdd(&state->tally.nonfinite, tally.nonfinite);
  atomicMin(&state->tally.first_nonfinite, tally.first_nonfinite);
  atomicMin(&state->tally.culprit, tally.culprit);
}

// One team per tile, for the tiles in [first_tile, end_tile), both even. Writes the sums (unless null), the bitmap
// (unless null), the counts of candidates per tile, the block sums of the mean (unless null) and the tally. kWhole:
// these tiles are whole. A separate kernel, because the guarded code needs other registers.
template <bool kWhole, typename Part>
__global__ void __launch_bounds__(kThreads) scan_kernel(Input<Part> input, float* sums, Workspace work,
                                                        uint32_t first_tile, uint32_t end_tile) {
  const uint32_t tile = first_tile + blockIdx.x * kTilesPerBlock + threadIdx.x / kTeam;
  Tally tally = empty_tally();
  if (tile < end_tile) scan_tile<kWhole>(input, sums, work, tile, &tally);
  commit_tally(tally, work.state);
}

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_SELECT_GPU_SCAN_CUH_
