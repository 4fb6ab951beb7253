// The magnitude of a given rank, and where a sample of the vector says that it lies.
#ifndef HVD_SPARSE_OPS_SELECT_CPU_RANK_H_
#define HVD_SPARSE_OPS_SELECT_CPU_RANK_H_

#include "select_cpu_kernels.h"

namespace hvds {

// The key of rank `rank` (1 = the largest) among `count` >= rank keys, whose signs are ignored. `scratch` is other memory
// with room for `count` + kOverhang keys.
Key ranked_key(const Kernels& kernels, const uint32_t* keys, int64_t count, int64_t rank, Key* scratch);

// How many candidates are expected, and how the bounds that give them are found. A sample of `groups` * kNeighbours
// elements is drawn; the one of rank `lower_rank` in it is below the magnitude sought, the one of rank `upper_rank` (0:
// none) above it, almost always, and the one of rank `likely_rank` about as large. groups 0: no sample, every element is
// a candidate.
struct SamplePlan {
  int64_t groups;
  int64_t lower_rank;
  int64_t likely_rank;
  int64_t upper_rank;
  double share;      // of the elements that will be candidates
  int64_t capacity;  // candidates that a scan may collect before it has to sort some out
};

// For the magnitude of rank `rank` among `size` elements.
SamplePlan plan_sample(int64_t size, int64_t rank);

// Where the groups of a sample lie: each at a jittered place in its share of the vector, as a fixed stride would be blind
// to what repeats with it.
class SampleGrid {
 public:
  SampleGrid(int64_t groups, int64_t size)
      : width_(groups == 0 ? 0 : (static_cast<uint64_t>(size) << 32) / static_cast<uint64_t>(groups)) {}

  // The first of the kNeighbours elements of a group. Shares are twice as wide as that at least.
  int64_t position(int64_t group) const {
    const uint64_t number = static_cast<uint64_t>(group);
    const uint64_t start = number * width_ >> 32;
    const uint64_t end = (number + 1) * width_ >> 32;
    return static_cast<int64_t>(start + ((splitmix64(number) >> 32) * (end - start - kNeighbours + 1) >> 32));
  }

 private:
  uint64_t width_;  // of a share, times 2^32
};

// `sample` holds the magnitudes that were drawn, with room for kOverhang more; `scratch` is as large.
Bounds sampled_bounds(const Kernels& kernels, const SamplePlan& plan, const Key* sample, Key* scratch);

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_SELECT_CPU_RANK_H_
