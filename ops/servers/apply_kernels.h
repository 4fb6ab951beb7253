// The loop of the steps, which exists once per instruction set; its source is apply_kernels.inc.
#ifndef HVD_SPARSE_OPS_APPLY_KERNELS_H_
#define HVD_SPARSE_OPS_APPLY_KERNELS_H_

#include <cstdint>

#include "apply.h"

namespace hvds {

constexpr int64_t kLine = 16;  // floats in 64 bytes

// A run of elements.
struct ApplyRun {
  hvds_step step;
  float* weights;
  float* slots[HVDS_MOST_SLOTS];  // the optimizer's; the others are null
  const float* gradient;
  int64_t length;
  int64_t ahead;  // prefetch distance, in elements; 0 if everything is in the cache
};

struct ApplyKernels {
  void (*apply[HVDS_OPTIMIZERS])(const ApplyRun& run);
};

extern const ApplyKernels kBaseApply;
#if defined(__x86_64__) && defined(__GNUC__)
extern const ApplyKernels kAvx2Apply;
extern const ApplyKernels kAvx512Apply;
#endif

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_APPLY_KERNELS_H_
