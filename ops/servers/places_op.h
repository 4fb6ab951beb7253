// Checks of the ops' arguments that are places.
#ifndef HVD_SPARSE_OPS_PLACES_OP_H_
#define HVD_SPARSE_OPS_PLACES_OP_H_

#include "../common/op_support.h"
#include "places.h"
#include "tensorflow/core/framework/tensor.h"

namespace hvds {

// Checks that places [k] lie within a vector of this size.
inline absl::Status check_places(const Tensor& places, int64_t size) {
  if (places.dims() != 1) {
    return invalid_argument("Expected places as a vector, got shape ", places.shape().DebugString(), ".");
  }
  if (hvds_places_fit(places.flat<int32_t>().data(), places.NumElements(), size)) return absl::OkStatus();
  return invalid_argument("Expected places in [0, ", size, "), got one that is not.");
}

// Checks that there is a value for each place.
inline absl::Status check_values(const Tensor& values, const Tensor& places) {
  if (values.shape() == places.shape()) return absl::OkStatus();
  return invalid_argument("Expected a value for each place, got values of shape ", values.shape().DebugString(),
                          " and places of ", places.shape().DebugString(), ".");
}

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_PLACES_OP_H_
