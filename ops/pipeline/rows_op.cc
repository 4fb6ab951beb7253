// TensorFlow ops for the largest magnitudes of rows; the arithmetic is in rows.h.
#include "rows.h"

#include "rows_arguments.h"
#include "tensorflow/core/framework/op.h"

namespace hvds {
namespace {

using tensorflow::DEVICE_CPU;

// ---- Shapes ----

// The shapes x [..., d] and [..., k], k elements of each row.
absl::Status kept_shapes(InferenceContext* c, ShapeHandle* x, ShapeHandle* kept) {
  int64_t k = 0;
  tensorflow::DataType positions;
  TF_RETURN_IF_ERROR(c->GetAttr("k", &k));
  TF_RETURN_IF_ERROR(c->GetAttr("P", &positions));
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 1, x));
  const DimensionHandle width = c->Dim(*x, -1);
  if (c->ValueKnown(width)) TF_RETURN_IF_ERROR(check_row(k, c->Value(width), positions));
  return c->ReplaceDim(*x, -1, c->MakeDim(k), kept);
}

absl::Status threshold_shape(InferenceContext* c) {
  ShapeHandle x, kept;
  TF_RETURN_IF_ERROR(kept_shapes(c, &x, &kept));
  c->set_output(0, x);
  c->set_output(1, kept);
  return absl::OkStatus();
}

absl::Status largest_shape(InferenceContext* c) {
  ShapeHandle x, kept;
  TF_RETURN_IF_ERROR(kept_shapes(c, &x, &kept));
  c->set_output(0, kept);
  c->set_output(1, kept);
  return absl::OkStatus();
}

absl::Status place_shape(InferenceContext* c) {
  int64_t width = 0;
  ShapeHandle values, y;
  TF_RETURN_IF_ERROR(c->GetAttr("width", &width));
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 1, &values));
  TF_RETURN_IF_ERROR(c->Merge(values, c->input(1), &values));
  TF_RETURN_IF_ERROR(c->ReplaceDim(values, -1, c->MakeDim(width), &y));
  c->set_output(0, y);
  return absl::OkStatus();
}

absl::Status gather_shape(InferenceContext* c) {
  ShapeHandle x, positions, values, merged;
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 1, &x));
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(1), 1, &positions));
  const DimensionHandle kept = c->Dim(positions, -1);
  TF_RETURN_IF_ERROR(c->ReplaceDim(x, -1, kept, &values));
  TF_RETURN_IF_ERROR(c->Merge(values, positions, &merged));
  c->set_output(0, merged);
  return absl::OkStatus();
}

absl::Status mask_shape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(gather_shape(c));
  c->set_output(0, c->input(0));
  return absl::OkStatus();
}

// ---- Registration ----

REGISTER_OP("HvdSparseThresholdRows")
    .Input("x: T")
    .Output("y: T")
    .Output("positions: P")
    .Attr("k: int >= 0")
    .Attr("T: {float, half, bfloat16}")
    .Attr("P: {uint16, int32}")
    .SetShapeFn(threshold_shape);

REGISTER_OP("HvdSparseLargestRows")
    .Input("x: T")
    .Output("values: T")
    .Output("positions: P")
    .Attr("k: int >= 0")
    .Attr("T: {float, half, bfloat16}")
    .Attr("P: {uint16, int32}")
    .SetShapeFn(largest_shape);

REGISTER_OP("HvdSparsePlaceRows")
    .Input("values: T")
    .Input("positions: P")
    .Output("y: T")
    .Attr("width: int >= 0")
    .Attr("T: {float, half, bfloat16}")
    .Attr("P: {uint16, int32}")
    .SetShapeFn(place_shape);

REGISTER_OP("HvdSparseGatherRows")
    .Input("x: T")
    .Input("positions: P")
    .Output("values: T")
    .Attr("T: {float, half, bfloat16}")
    .Attr("P: {uint16, int32}")
    .SetShapeFn(gather_shape);

REGISTER_OP("HvdSparseMaskRows")
    .Input("x: T")
    .Input("positions: P")
    .Output("y: T")
    .Attr("T: {float, half, bfloat16}")
    .Attr("P: {uint16, int32}")
    .SetShapeFn(mask_shape);

// ---- Kernels ----

absl::Status out_of_memory() {
  return absl::ResourceExhaustedError("There is not enough memory for a row of each thread.");
}

absl::Status told(int64_t row, const hvds_rows& shape) {
  if (row == -1) return absl::OkStatus();
  if (row < 0) return out_of_memory();
  return invalid_argument("Expected positions that ascend in each row and lie in [0, ", shape.width,
                          "), got others in row ", row, ".");
}

// Outputs y and positions, or values and positions.
template <bool kDense>
class LargestRowsOp : public OpKernel {
 public:
  explicit LargestRowsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("k", &kept_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    hvds_rows shape{};
    OP_REQUIRES_OK(context, rows_of(x, kept_, context->expected_output_dtype(1), &shape));
    Tensor* first = nullptr;
    Tensor* positions = nullptr;
    OP_REQUIRES_OK(context, first_.allocate(context, 0, kDense ? x.shape() : with_width(x, kept_), &first));
    OP_REQUIRES_OK(context, positions_.allocate(context, 1, with_width(x, kept_), &positions));
    const DeviceThreads threads(context);
    OP_REQUIRES(context,
                hvds_largest_rows(&shape, x.data(), kDense ? first->data() : nullptr,
                                  kDense ? nullptr : first->data(), positions->data(), threads.get()) == 0,
                out_of_memory());
  }

 private:
  int64_t kept_ = 0;
  KeptOutputs first_, positions_;
};

class PlaceRowsOp : public OpKernel {
 public:
  explicit PlaceRowsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("width", &width_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& values = context->input(0);
    const Tensor& positions = context->input(1);
    OP_REQUIRES_OK(context, check_values(values, positions));
    const int64_t kept = values.dim_size(values.dims() - 1);
    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, check_row(kept, width_, positions.dtype()));
    OP_REQUIRES_OK(context, y_.allocate(context, 0, with_width(values, width_), &y));
    hvds_rows shape{};
    OP_REQUIRES_OK(context, rows_of(*y, kept, positions.dtype(), &shape));
    const DeviceThreads threads(context);
    OP_REQUIRES_OK(context, told(hvds_place_rows(&shape, values.data(), positions.data(), y->data(), threads.get()),
                                 shape));
  }

 private:
  int64_t width_ = 0;
  KeptOutputs y_;
};

// Gathers the elements of x at the positions; with kDense they stay at their positions in a row of zeros.
template <bool kDense>
class GatherRowsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    const Tensor& positions = context->input(1);
    OP_REQUIRES_OK(context, check_positions(positions, x));
    hvds_rows shape{};
    OP_REQUIRES_OK(context, rows_of(x, positions.dim_size(positions.dims() - 1), positions.dtype(), &shape));
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, output_.allocate(context, 0, kDense ? x.shape() : positions.shape(), &output));
    const DeviceThreads threads(context);
    const auto run = kDense ? hvds_mask_rows : hvds_gather_rows;
    OP_REQUIRES_OK(context, told(run(&shape, x.data(), positions.data(), output->data(), threads.get()), shape));
  }

 private:
  KeptOutputs output_;
};

REGISTER_KERNEL_BUILDER(Name("HvdSparseThresholdRows").Device(DEVICE_CPU), LargestRowsOp<true>);
REGISTER_KERNEL_BUILDER(Name("HvdSparseLargestRows").Device(DEVICE_CPU), LargestRowsOp<false>);
REGISTER_KERNEL_BUILDER(Name("HvdSparsePlaceRows").Device(DEVICE_CPU), PlaceRowsOp);
REGISTER_KERNEL_BUILDER(Name("HvdSparseGatherRows").Device(DEVICE_CPU), GatherRowsOp<false>);
REGISTER_KERNEL_BUILDER(Name("HvdSparseMaskRows").Device(DEVICE_CPU), GatherRowsOp<true>);

}  // namespace
}  // namespace hvds
