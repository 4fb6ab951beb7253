// The inner loop of momentum, which exists once for each instruction set; momentum_kernels.inc has its text.
#ifndef HVD_SPARSE_OPS_MOMENTUM_KERNELS_H_
#define HVD_SPARSE_OPS_MOMENTUM_KERNELS_H_

#include <cstdint>

#include "../common/dtype.h"

namespace hvds {

constexpr int kPartDtypes = 3;  // HVDS_FLOAT32, HVDS_FLOAT16 and HVDS_BFLOAT16

// A run of elements.
struct MomentumRun {
  const void* parts;  // of the first one, `stride` elements before the next one
  int count;
  int64_t stride;
  const float* velocity;
  float* velocity_out;
  float* moves;  // null: velocity_out is what is moved by
  int64_t length;
  float decay, gain;
  bool streams;  // results are written past the caches; they begin at a multiple of 64 bytes
};

struct MomentumKernels {
  // By the parts' dtype. Returns whether all that is to be moved by is finite.
  bool (*advance[kPartDtypes])(const MomentumRun& run);
};

extern const MomentumKernels kBaseMomentum;
#if defined(__x86_64__) && defined(__GNUC__)
extern const MomentumKernels kAvx2Momentum;
extern const MomentumKernels kAvx512Momentum;
#endif

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_MOMENTUM_KERNELS_H_
