// TensorFlow ops around the selection; the arithmetic is in sparse.h.
#include <limits>

#include "../common/op_support.h"
#include "sparse.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace hvds {
namespace {

using tensorflow::DEVICE_CPU;
using tensorflow::DT_INT32;
using tensorflow::TensorShapeUtils;

constexpr int64_t kMaxSize = std::numeric_limits<int32_t>::max();

absl::Status sum_parts_shape(InferenceContext* c) {
  ShapeHandle parts;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &parts));
  c->set_output(0, c->Vector(c->Dim(parts, 1)));
  c->set_output(1, c->Scalar());
  return absl::OkStatus();
}

absl::Status mean_shape(InferenceContext* c) {
  ShapeHandle total, ignored;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &total));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &ignored));
  c->set_output(0, total);
  c->set_output(1, c->Scalar());
  return absl::OkStatus();
}

absl::Status mark_nonfinite_shape(InferenceContext* c) {
  ShapeHandle values, ignored;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &values));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &ignored));
  c->set_output(0, values);
  return absl::OkStatus();
}

absl::Status pack_shape(InferenceContext* c) {
  ShapeHandle values, indices;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &values));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &indices));
  TF_RETURN_IF_ERROR(c->Merge(values, indices, &values));
  tensorflow::DataType type;
  TF_RETURN_IF_ERROR(c->GetAttr("T", &type));
  const DimensionHandle count = c->Dim(values, 0);
  const int64_t words =
      c->ValueKnown(count) ? hvds_message_words(c->Value(count), dtype_of(type)) : InferenceContext::kUnknownDim;
  c->set_output(0, c->Vector(words));
  return absl::OkStatus();
}

absl::Status unpack_shape(InferenceContext* c) {
  ShapeHandle ignored;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &ignored));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &ignored));
  DimensionHandle total = c->UnknownDim();
  if (const Tensor* counts = c->input_tensor(1)) {
    int64_t sum = 0;
    for (int64_t i = 0; i < counts->NumElements(); ++i) sum += counts->flat<int32_t>()(i);
    if (sum >= 0) total = c->MakeDim(sum);
  }
  c->set_output(0, c->Vector(total));
  c->set_output(1, c->Vector(total));
  return absl::OkStatus();
}

absl::Status sparse_sum_shape(InferenceContext* c) {
  ShapeHandle values, indices, ignored;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &values));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &indices));
  TF_RETURN_IF_ERROR(c->Merge(values, indices, &values));
  for (int scalar = 2; scalar < 5; ++scalar) TF_RETURN_IF_ERROR(c->WithRank(c->input(scalar), 0, &ignored));
  DimensionHandle size;
  TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(2, &size));
  c->set_output(0, c->Vector(size));
  return absl::OkStatus();
}

REGISTER_OP("HvdSparseSumParts")
    .Input("parts: T")
    .Output("sum: float")
    .Output("culprit: int32")
    .Attr("T: {float, half, bfloat16}")
    .SetShapeFn(sum_parts_shape);

REGISTER_OP("HvdSparseMean")
    .Input("total: T")
    .Input("divisor: float")
    .Output("mean: dtype")
    .Output("nonfinite: bool")
    .Attr("T: {float, half, bfloat16}")
    .Attr("dtype: {float, half, bfloat16}")
    .SetShapeFn(mean_shape);

REGISTER_OP("HvdSparseMarkNonfinite")
    .Input("values: T")
    .Input("nonfinite: bool")
    .Output("marked: T")
    .Attr("T: {float, half, bfloat16}")
    .SetShapeFn(mark_nonfinite_shape);

REGISTER_OP("HvdSparsePack")
    .Input("values: T")
    .Input("indices: int32")
    .Output("message: int32")
    .Attr("T: {float, half, bfloat16}")
    .SetShapeFn(pack_shape);

REGISTER_OP("HvdSparseUnpack")
    .Input("messages: int32")
    .Input("counts: int32")
    .Output("values: T")
    .Output("indices: int32")
    .Attr("T: {float, half, bfloat16}")
    .SetShapeFn(unpack_shape);

REGISTER_OP("HvdSparseSum")
    .Input("values: T")
    .Input("indices: int32")
    .Input("size: int64")
    .Input("divisor: float")
    .Input("offset: int64")
    .Output("dense: dtype")
    .Attr("T: {float, half, bfloat16}")
    .Attr("dtype: {float, half, bfloat16}")
    .SetShapeFn(sparse_sum_shape);

class SumPartsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& parts = context->input(0);
    OP_REQUIRES(
        context, parts.dims() == 2 && parts.dim_size(0) >= 1,
        invalid_argument("Expected parts [n, d] with n of at least 1, got shape ", parts.shape().DebugString()));
    const TensorShape shape({parts.dim_size(1)});
    Tensor* culprit = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({}), &culprit));
    const DeviceThreads threads(context);
    Tensor alone;  // a single float32 part is its own sum, and is not copied
    if (parts.dim_size(0) == 1 && parts.dtype() == tensorflow::DT_FLOAT && alone.CopyFrom(parts, shape)) {
      context->set_output(0, alone);
      culprit->scalar<int32_t>()() = !hvds_all_finite(static_cast<const float*>(parts.data()), shape.num_elements(), threads.get());
      return;
    }
    Tensor* sum = nullptr;
    OP_REQUIRES_OK(context, sums_.allocate(context, 0, shape, &sum));
    culprit->scalar<int32_t>()() =
        hvds_sum_parts(parts.data(), dtype_of(parts.dtype()), static_cast<int32_t>(parts.dim_size(0)),
                       parts.dim_size(1), sum->flat<float>().data(), threads.get());
  }

 private:
  KeptOutputs sums_;
};

absl::Status check_entries(const Tensor& values, const Tensor& indices) {
  if (TensorShapeUtils::IsVector(values.shape()) && values.shape() == indices.shape()) return absl::OkStatus();
  return invalid_argument("Expected values [k] and indices [k] of the same length, got shapes ",
                          values.shape().DebugString(), " and ", indices.shape().DebugString());
}

class MeanOp : public OpKernel {
 public:
  explicit MeanOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& total = context->input(0);
    OP_REQUIRES(context, total.dims() == 1 && context->input(1).dims() == 0,
                invalid_argument("Expected a total [d] and a scalar divisor, got shapes ", total.shape().DebugString(),
                                 " and ", context->input(1).shape().DebugString()));
    Tensor* mean = nullptr;
    OP_REQUIRES_OK(context, mean_output(context, &mean));
    Tensor* nonfinite = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({}), &nonfinite));
    const DeviceThreads threads(context);
    nonfinite->scalar<bool>()() =
        !hvds_mean(total.data(), dtype_of(total.dtype()), context->input(1).scalar<float>()(), mean->data(),
                   dtype_of(dtype_), total.NumElements(), threads.get());
  }

 private:
  // Overwrites the total if it has no other holders.
  absl::Status mean_output(OpKernelContext* context, Tensor** mean) {
    const TensorShape shape = context->input(0).shape();
    if (context->input(0).dtype() == dtype_ &&
        context->forward_input_to_output_with_shape(0, 0, shape, mean)) {
      return absl::OkStatus();
    }
    return means_.allocate(context, 0, shape, mean);
  }

  tensorflow::DataType dtype_;
  KeptOutputs means_;
};

class MarkNonfiniteOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& values = context->input(0);
    OP_REQUIRES(context, values.dims() == 1 && context->input(1).dims() == 0,
                invalid_argument("Expected values [k] and a scalar nonfinite, got shapes ",
                                 values.shape().DebugString(), " and ", context->input(1).shape().DebugString()));
    if (!context->input(1).scalar<bool>()() || values.NumElements() == 0) {
      context->set_output(0, values);
      return;
    }
    Tensor* marked = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, values.shape(), &marked));
    hvds_mark_nonfinite(values.data(), dtype_of(values.dtype()), values.NumElements(), marked->data());
  }
};

class PackOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& values = context->input(0);
    const Tensor& indices = context->input(1);
    OP_REQUIRES_OK(context, check_entries(values, indices));
    const hvds_dtype dtype = dtype_of(values.dtype());
    const int64_t count = values.NumElements();
    Tensor* message = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({hvds_message_words(count, dtype)}), &message));
    hvds_pack(values.data(), indices.flat<int32_t>().data(), count, dtype, message->flat<int32_t>().data());
  }
};

class UnpackOp : public OpKernel {
 public:
  explicit UnpackOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("T", &type_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& messages = context->input(0);
    const Tensor& counts = context->input(1);
    int64_t total = 0;
    OP_REQUIRES_OK(context, count_entries(messages, counts, &total));
    Tensor* values = nullptr;
    Tensor* indices = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({total}), &values));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({total}), &indices));
    hvds_unpack(messages.flat<int32_t>().data(), counts.flat<int32_t>().data(), counts.NumElements(), dtype_of(type_),
                values->data(), indices->flat<int32_t>().data());
  }

 private:
  absl::Status count_entries(const Tensor& messages, const Tensor& counts, int64_t* total) const {
    if (messages.dims() != 1 || counts.dims() != 1) {
      return invalid_argument("Expected messages [words] and counts [r], got shapes ", messages.shape().DebugString(),
                              " and ", counts.shape().DebugString());
    }
    int64_t words = 0;
    for (int64_t rank = 0; rank < counts.NumElements(); ++rank) {
      const int32_t count = counts.flat<int32_t>()(rank);
      if (count < 0) return invalid_argument("Expected counts of at least 0, got ", count, " at position ", rank);
      *total += count;
      words += hvds_message_words(count, dtype_of(type_));
    }
    if (words == messages.NumElements()) return absl::OkStatus();
    return invalid_argument("Expected messages of ", words, " words for ", *total, " entries of ",
                            DataTypeString(type_), " from ", counts.NumElements(), " ranks, got ",
                            messages.NumElements(), "; counts and dtype must be the sender's");
  }

  tensorflow::DataType type_;
};

class SparseSumOp : public OpKernel {
 public:
  explicit SparseSumOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& values = context->input(0);
    const Tensor& indices = context->input(1);
    OP_REQUIRES_OK(context, check_entries(values, indices));
    for (int number = 2; number < 5; ++number) OP_REQUIRES_OK(context, check_scalar(context, number));
    const int64_t size = context->input(2).scalar<int64_t>()();
    const float divisor = context->input(3).scalar<float>()();
    const int64_t offset = context->input(4).scalar<int64_t>()();
    OP_REQUIRES(context, 0 <= size && size <= kMaxSize,
                invalid_argument("Expected a size in [0, 2^31 - 1], got ", size));
    OP_REQUIRES(context, 0 <= offset && offset <= kMaxSize,
                invalid_argument("Expected an offset in [0, 2^31 - 1], got ", offset));
    Tensor* dense = nullptr;
    OP_REQUIRES_OK(context, sums_.allocate(context, 0, TensorShape({size}), &dense));
    const DeviceThreads threads(context);
    const int64_t misplaced =
        hvds_sparse_sum(values.data(), dtype_of(values.dtype()), indices.flat<int32_t>().data(), values.NumElements(),
                        offset, divisor, dense->data(), dtype_of(dtype_), size, threads.get());
    OP_REQUIRES(context, misplaced < 0,
                invalid_argument("Expected indices in [", offset, ", ", offset + size, "), got ",
                                 indices.flat<int32_t>()(misplaced), " at position ", misplaced, " of ",
                                 indices.NumElements()));
  }

 private:
  static absl::Status check_scalar(OpKernelContext* context, int number) {
    if (context->input(number).dims() == 0) return absl::OkStatus();
    return invalid_argument("Expected size, divisor and offset to be scalars, got shape ",
                            context->input(number).shape().DebugString());
  }

  tensorflow::DataType dtype_;
  KeptOutputs sums_;
};

REGISTER_KERNEL_BUILDER(Name("HvdSparseSumParts").Device(DEVICE_CPU), SumPartsOp);
REGISTER_KERNEL_BUILDER(Name("HvdSparseMean").Device(DEVICE_CPU), MeanOp);
REGISTER_KERNEL_BUILDER(Name("HvdSparseMarkNonfinite").Device(DEVICE_CPU), MarkNonfiniteOp);
REGISTER_KERNEL_BUILDER(Name("HvdSparsePack").Device(DEVICE_CPU), PackOp);
REGISTER_KERNEL_BUILDER(Name("HvdSparseUnpack").Device(DEVICE_CPU), UnpackOp);
REGISTER_KERNEL_BUILDER(Name("HvdSparseSum").Device(DEVICE_CPU), SparseSumOp);

}  // namespace
}  // namespace hvds
