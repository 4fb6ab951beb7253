// Checks of the momentum op's arguments, on the CPU and on a GPU.
#ifndef HVD_SPARSE_OPS_MOMENTUM_ARGUMENTS_H_
#define HVD_SPARSE_OPS_MOMENTUM_ARGUMENTS_H_

#include "../common/op_support.h"

namespace hvds {

// The op's arguments, checked.
struct MomentumArguments {
  explicit MomentumArguments(OpKernelContext* context)
      : parts(context->input(0)), velocity(context->input(1)), decay(context->input(2)), gain(context->input(3)) {}

  absl::Status check() const {
    if (parts.dims() != 2 || parts.dim_size(0) < 1) {
      return invalid_argument("Expected parts [n, d] with n of at least 1, got shape ", parts.shape().DebugString());
    }
    if (velocity.shape() != TensorShape({size()})) {
      return invalid_argument("Expected a velocity [", size(), "], as parts are [", count(), ", ", size(),
                              "], got shape ", velocity.shape().DebugString());
    }
    if (decay.dims() == 0 && gain.dims() == 0) return absl::OkStatus();
    return invalid_argument("Expected decay and gain to be scalars, got shapes ", decay.shape().DebugString(), " and ",
                            gain.shape().DebugString());
  }

  int32_t count() const { return static_cast<int32_t>(parts.dim_size(0)); }
  int64_t size() const { return parts.dim_size(1); }

  const Tensor& parts;
  const Tensor& velocity;
  const Tensor& decay;
  const Tensor& gain;
};

inline absl::Status check_clearing(const Tensor& vector, const Tensor& indices) {
  if (vector.dims() == 1 && indices.dims() == 1) return absl::OkStatus();
  return invalid_argument("Expected a vector [d] and indices [k], got shapes ", vector.shape().DebugString(), " and ",
                          indices.shape().DebugString());
}

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_MOMENTUM_ARGUMENTS_H_
