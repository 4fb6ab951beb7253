// The magnitude of a given rank, and bounds on it from a sample of the vector.
#ifndef HVD_SPARSE_OPS_SELECT_CPU_RANK_H_
#define HVD_SPARSE_OPS_SELECT_CPU_RANK_H_

#include "select_cpu_kernels.h"

namespace hvds {

// The key of rank `rank` (1 = the largest) among `count` >= rank keys, whose signs are ignored. `scratch` is separate
// memory with room for `count` + kOverhang keys.
Key ranked_key(const Kernels& kernels, const uint32_t* keys, int64_t count, int64_t rank, Key* scratch);

// The expected number of candidates, and how the bounds that yield them are found. A sample of `groups` * kNeighbours
// elements is drawn. Almost always, its element of rank `lower_rank` is below the magnitude sought and the one of rank
// `upper_rank` (0: none) above it; the one of rank `likely_rank` is about as large. groups 0: no sample, every element
// is a candidate.
struct SamplePlan {
  int64_t groups;
  int64_t lower_rank;
  int64_t likely_rank;
  int64_t upper_rank;
  double share;      // of the elements that are expected to be candidates
  int64_t capacity;  // candidates that a scan may collect before it must sort some out
};

// For the magnitude of rank `rank` among `size` elements.
SamplePlan plan_sample(int64_t size, int64_t rank);

// Positions of a sample's groups: each at a jittered place in its share of the vector, as a fixed stride could miss
// data that repeat with it.
class SampleGrid {
 public:
  SampleGrid(int64_t groups, int64_t size)
      : width_(groups == 0 ? 0 : (static_cast<uint64_t>(size) << 32) / static_cast<uint64_t>(groups)) {}

  // The first of the kNeighbours elements of a group. Shares are at least twice that wide.
  int64_t position(int64_t group) const {
    const uint64_t number = static_cast<uint64_t>(group);
    const uint64_t start = number * width_ >> 32;
    const uint64_t end = (number + 1) * width_ >> 32;
    return static_cast<int64_t>(start + ((splitmix64(number) >> 32) * (end - start - kNeighbours + 1) >> 32));
  }

 private:
  uint64_t width_;  // of a share, times 2^32
};

// `sample` holds the magnitudes that were drawn, with room for kOverhang more; `scratch` has the same size.
Bounds sampled_bounds(const Kernels& kernels, const SamplePlan& plan, const Key* sample, Key* scratch);

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_SELECT_CPU_RANK_H_
