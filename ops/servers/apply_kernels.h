// The loop of the steps, which exists once for each instruction set; apply_kernels.inc has its text.
#ifndef HVD_SPARSE_OPS_APPLY_KERNELS_H_
#define HVD_SPARSE_OPS_APPLY_KERNELS_H_

#include <cstdint>

#include "apply.h"

namespace hvds {

// A run of elements.
struct ApplyRun {
  hvds_step step;
  float* weights;
  float* slots[HVDS_MOST_SLOTS];  // the optimizer's; the others are null
  const float* gradient;
  int64_t length;
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
