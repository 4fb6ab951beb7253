// The inner loop of momentum, which exists once per instruction set; its source is momentum_kernels.inc.
#ifndef HVD_SPARSE_OPS_MOMENTUM_KERNELS_H_
#define HVD_SPARSE_OPS_MOMENTUM_KERNELS_H_

#include <cstdint>

#include "../common/dtype.h"

namespace hvds {

constexpr int kPartDtypes = 3;  // HVDS_FLOAT32, HVDS_FLOAT16 and HVDS_BFLOAT16

// A run of elements.
struct MomentumRun {
  const void* parts;  // of the first part; the next one is `stride` elements further
  int count;
  int64_t stride;
  const float* velocity;
  float* velocity_out;
  float* moves;  // null: velocity_out is the move
  int64_t length;
  float decay, gain;
  bool streams;  // results are written past the caches; they begin at a multiple of 64 bytes
};

struct MomentumKernels {
  // Indexed by the parts' dtype. Returns whether every element of the move is finite.
  bool (*advance[kPartDtypes])(const MomentumRun& run);
};

extern const MomentumKernels kBaseMomentum;
#if defined(__x86_64__) && defined(__GNUC__)
extern const MomentumKernels kAvx2Momentum;
extern const MomentumKernels kAvx512Momentum;
#endif

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_MOMENTUM_KERNELS_H_
