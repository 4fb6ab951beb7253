// Checks of the arguments of the ops on rows, on the CPU and on a GPU.
#ifndef HVD_SPARSE_OPS_ROWS_ARGUMENTS_H_
#define HVD_SPARSE_OPS_ROWS_ARGUMENTS_H_

#include <limits>

#include "../common/op_support.h"
#include "rows.h"

namespace hvds {

constexpr int64_t kNarrowWidth = 65536;  // positions in rows up to this width fit into uint16

// Checks that `kept` elements of a row of `width` can be kept, with positions of this type.
inline absl::Status check_row(int64_t kept, int64_t width, tensorflow::DataType positions) {
  const bool narrow = positions == tensorflow::DT_UINT16;
  const int64_t most = narrow ? kNarrowWidth : std::numeric_limits<int32_t>::max();
  if (width > most) {
    return invalid_argument("Expected rows of at most ", most, " elements, as positions are ",
                            tensorflow::DataTypeString(positions), ", got ", width, ".");
  }
  if (kept >= 0 && kept <= width) return absl::OkStatus();
  return invalid_argument("Expected k in [0, ", width, "], the elements of a row, got ", kept, ".");
}

// Describes x [..., width], of which `kept` elements are kept in each row.
inline absl::Status rows_of(const Tensor& x, int64_t kept, tensorflow::DataType positions,
                            hvds_rows* shape) {
  if (x.dims() < 1) return invalid_argument("Expected x of shape [..., d], got a scalar.");
  const int64_t width = x.dim_size(x.dims() - 1);
  TF_RETURN_IF_ERROR(check_row(kept, width, positions));
  int64_t rows = 1;
  for (int axis = 0; axis < x.dims() - 1; ++axis) rows *= x.dim_size(axis);
  *shape = {dtype_of(x.dtype()), rows, width, kept, positions == tensorflow::DT_UINT16};
  return absl::OkStatus();
}

// The shape of a tensor with its last dimension replaced by `width`.
inline TensorShape with_width(const Tensor& tensor, int64_t width) {
  TensorShape shape = tensor.shape();
  shape.set_dim(tensor.dims() - 1, width);
  return shape;
}

inline absl::Status check_positions(const Tensor& positions, const Tensor& x) {
  if (positions.dims() >= 1 && x.dims() == positions.dims() && with_width(positions, 0) == with_width(x, 0)) {
    return absl::OkStatus();
  }
  return invalid_argument("Expected x [..., d] and positions [..., k] of the same rows, got shapes ",
                          x.shape().DebugString(), " and ", positions.shape().DebugString(), ".");
}

inline absl::Status check_values(const Tensor& values, const Tensor& positions) {
  if (values.dims() >= 1 && values.shape() == positions.shape()) return absl::OkStatus();
  return invalid_argument("Expected values [..., k] and as many positions, got shapes ", values.shape().DebugString(),
                          " and ", positions.shape().DebugString(), ".");
}

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_ROWS_ARGUMENTS_H_
