// TensorFlow ops for selection by magnitude; the arithmetic is in select.h.
#include <algorithm>

#include "select.h"
#include "select_arguments.h"
#include "select_workspaces.h"
#include "tensorflow/core/framework/op.h"

namespace hvds {
namespace {

using tensorflow::DEVICE_CPU;

// ---- Shapes ----

// The dimension of the elements kept of `size`, given by the scalar input number `input`.
absl::Status kept_dimension(InferenceContext* c, int input, DimensionHandle size, DimensionHandle* kept) {
  ShapeHandle scalar;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(input), 0, &scalar));
  *kept = c->UnknownDim();
  const Tensor* number = c->input_tensor(input);
  if (number == nullptr) return absl::OkStatus();
  const int64_t known = number_of(*number);
  TF_RETURN_IF_ERROR(check_kept(known, c->ValueKnown(size) ? c->Value(size) : kMaxSize));
  *kept = c->MakeDim(known);
  return absl::OkStatus();
}

absl::Status select_shape(InferenceContext* c) {
  ShapeHandle x, selected;
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 1, &x));
  DimensionHandle kept;
  TF_RETURN_IF_ERROR(kept_dimension(c, 1, c->Dim(x, -1), &kept));
  TF_RETURN_IF_ERROR(c->ReplaceDim(x, -1, kept, &selected));
  c->set_output(0, selected);
  c->set_output(1, selected);
  return absl::OkStatus();
}

absl::Status feedback_shape(InferenceContext* c) {
  ShapeHandle parts, residual;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &parts));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &residual));
  DimensionHandle size, kept;
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(parts, 1), c->Dim(residual, 0), &size));
  TF_RETURN_IF_ERROR(kept_dimension(c, 2, size, &kept));
  c->set_output(0, c->Vector(kept));
  c->set_output(1, c->Vector(kept));
  c->set_output(2, c->Vector(size));
  c->set_output(3, c->Scalar());
  return absl::OkStatus();
}

// The number of elements kept of `size`, if `kept` of every `bucket` are.
int64_t kept_by_buckets(int64_t size, int64_t bucket, int64_t kept) {
  return size / bucket * kept + std::min(size % bucket, kept);
}

absl::Status check_bucket(int64_t bucket, int64_t kept) {
  if (kept >= 1 && kept <= bucket) return absl::OkStatus();
  return invalid_argument("Expected k in [1, bucket], got k = ", kept, " and bucket = ", bucket, ".");
}

absl::Status bucket_feedback_shape(InferenceContext* c) {
  ShapeHandle parts, residual;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &parts));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &residual));
  int64_t kept = 0, bucket = 0;
  TF_RETURN_IF_ERROR(c->GetAttr("k", &kept));
  TF_RETURN_IF_ERROR(c->GetAttr("bucket", &bucket));
  TF_RETURN_IF_ERROR(check_bucket(bucket, kept));
  DimensionHandle size;
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(parts, 1), c->Dim(residual, 0), &size));
  const bool known = c->ValueKnown(size);
  const DimensionHandle sent = known ? c->MakeDim(kept_by_buckets(c->Value(size), bucket, kept)) : c->UnknownDim();
  c->set_output(0, c->Vector(sent));
  c->set_output(1, c->Vector(sent));
  c->set_output(2, c->Vector(size));
  c->set_output(3, c->Scalar());
  return absl::OkStatus();
}

absl::Status seeded_select_shape(InferenceContext* c) {
  ShapeHandle scalar;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 0, &scalar));
  return select_shape(c);
}

absl::Status seeded_feedback_shape(InferenceContext* c) {
  ShapeHandle scalar;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(3), 0, &scalar));
  return feedback_shape(c);
}

// ---- Registration ----

REGISTER_OP("HvdSparseTopk")
    .Input("x: T")
    .Input("k: Tk")
    .Output("values: T")
    .Output("indices: int32")
    .Attr("T: {float, half, bfloat16}")
    .Attr("Tk: {int32, int64}")
    .SetShapeFn(select_shape);

REGISTER_OP("HvdSparseMstopk")
    .Input("x: T")
    .Input("k: Tk")
    .Input("seed: Tseed")
    .Output("values: T")
    .Output("indices: int32")
    .Attr("T: {float, half, bfloat16}")
    .Attr("Tk: {int32, int64}")
    .Attr("Tseed: {int32, int64}")
    .Attr("samplings: int = 30")
    .SetShapeFn(seeded_select_shape);

REGISTER_OP("HvdSparseFeedbackTopk")
    .Input("parts: T")
    .Input("residual: float")
    .Input("k: Tk")
    .Output("values: wire_dtype")
    .Output("indices: int32")
    .Output("residual_out: float")
    .Output("culprit: int32")
    .Attr("T: {float, half, bfloat16}")
    .Attr("Tk: {int32, int64}")
    .Attr("wire_dtype: {float, half, bfloat16} = DT_FLOAT")
    .SetShapeFn(feedback_shape);

REGISTER_OP("HvdSparseFeedbackMstopk")
    .Input("parts: T")
    .Input("residual: float")
    .Input("k: Tk")
    .Input("seed: Tseed")
    .Output("values: wire_dtype")
    .Output("indices: int32")
    .Output("residual_out: float")
    .Output("culprit: int32")
    .Attr("T: {float, half, bfloat16}")
    .Attr("Tk: {int32, int64}")
    .Attr("Tseed: {int32, int64}")
    .Attr("samplings: int = 30")
    .Attr("wire_dtype: {float, half, bfloat16} = DT_FLOAT")
    .SetShapeFn(seeded_feedback_shape);

REGISTER_OP("HvdSparseFeedbackBucketTopk")
    .Input("parts: T")
    .Input("residual: float")
    .Output("values: wire_dtype")
    .Output("indices: int32")
    .Output("residual_out: float")
    .Output("culprit: int32")
    .Attr("T: {float, half, bfloat16}")
    .Attr("k: int")
    .Attr("bucket: int")
    .Attr("wire_dtype: {float, half, bfloat16} = DT_FLOAT")
    .SetShapeFn(bucket_feedback_shape);

// ---- Kernels ----

template <bool kMstopk>
class SelectOp : public SelectionKernel<kMstopk> {
 public:
  using SelectionKernel<kMstopk>::SelectionKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    OP_REQUIRES_OK(context, check_rows(x));
    const int64_t size = x.dim_size(x.dims() - 1);
    int64_t kept = 0;
    Search search;
    OP_REQUIRES_OK(context, this->read(context, 1, size, &kept, &search));
    TensorShape shape = x.shape();
    shape.set_dim(x.dims() - 1, kept);
    Tensor* values = nullptr;
    Tensor* indices = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &values));
    OP_REQUIRES_OK(context, context->allocate_output(1, shape, &indices));
    OP_REQUIRES_OK(context, select_rows(context, x, size, kept, search, values, indices));
  }

 private:
  absl::Status select_rows(OpKernelContext* context, const Tensor& x, int64_t size, int64_t kept, const Search& search,
                           Tensor* values, Tensor* indices) {
    const int64_t rows = size == 0 ? 0 : x.NumElements() / size;
    const int64_t item = tensorflow::DataTypeSize(x.dtype());
    const int dtype = dtype_of(x.dtype());
    const DeviceThreads threads(context);
    const Lease workspace(workspaces_);
    NotFinite not_finite;
    for (int64_t row = 0; row < rows; ++row) {
      const void* from = static_cast<const char*>(x.data()) + row * size * item;
      void* to = static_cast<char*>(values->data()) + row * kept * item;
      int32_t* places = static_cast<int32_t*>(indices->data()) + row * kept;
      int64_t report[2];
      TF_RETURN_IF_ERROR(told(
          kMstopk ? hvds_mstopk(from, dtype, size, kept, search.samplings, search.seed, to, places, report,
                                workspace.get(), threads.get())
                  : hvds_topk(from, dtype, size, kept, to, places, report, workspace.get(), threads.get())));
      not_finite.add(row, report);
    }
    return not_finite.status();
  }

  Workspaces workspaces_;
};

template <bool kMstopk>
class FeedbackOp : public SelectionKernel<kMstopk> {
 public:
  explicit FeedbackOp(OpKernelConstruction* context) : SelectionKernel<kMstopk>(context) {
    OP_REQUIRES_OK(context, context->GetAttr("wire_dtype", &wire_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& parts = context->input(0);
    const Tensor& residual = context->input(1);
    OP_REQUIRES_OK(context, check_parts(parts, residual));
    const int64_t size = parts.dim_size(1);
    int64_t kept = 0;
    Search search;
    OP_REQUIRES_OK(context, this->read(context, 2, size, &kept, &search));
    Tensor* values = nullptr;
    Tensor* indices = nullptr;
    Tensor* residual_out = nullptr;
    Tensor* culprit = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({kept}), &values));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({kept}), &indices));
    OP_REQUIRES_OK(context, residuals_.allocate(context, 2, TensorShape({size}), &residual_out));
    OP_REQUIRES_OK(context, context->allocate_output(3, TensorShape({}), &culprit));
    const DeviceThreads threads(context);
    const Lease workspace(workspaces_);
    const auto* residual_in = static_cast<const float*>(residual.data());
    auto* places = static_cast<int32_t*>(indices->data());
    auto* left = static_cast<float*>(residual_out->data());
    auto* code = static_cast<int32_t*>(culprit->data());
    const int dtype = dtype_of(parts.dtype());
    const int64_t count = parts.dim_size(0);
    OP_REQUIRES_OK(context,
                   told(kMstopk ? hvds_feedback_mstopk(parts.data(), dtype, count, size, residual_in, size, kept,
                                                       search.samplings, search.seed, dtype_of(wire_), values->data(),
                                                       places, left, code, workspace.get(), threads.get())
                                : hvds_feedback_topk(parts.data(), dtype, count, size, residual_in, size, kept,
                                                     dtype_of(wire_), values->data(), places, left, code,
                                                     workspace.get(), threads.get())));
  }

 private:
  Workspaces workspaces_;
  KeptOutputs residuals_;
  tensorflow::DataType wire_;
};

class FeedbackBucketTopkOp : public OpKernel {
 public:
  explicit FeedbackBucketTopkOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("k", &kept_));
    OP_REQUIRES_OK(context, context->GetAttr("bucket", &bucket_));
    OP_REQUIRES_OK(context, context->GetAttr("wire_dtype", &wire_));
    OP_REQUIRES_OK(context, check_bucket(bucket_, kept_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& parts = context->input(0);
    const Tensor& residual = context->input(1);
    OP_REQUIRES_OK(context, check_parts(parts, residual));
    const int64_t size = parts.dim_size(1);
    OP_REQUIRES_OK(context, check_size(size));
    const TensorShape sent({kept_by_buckets(size, bucket_, kept_)});
    Tensor* values = nullptr;
    Tensor* indices = nullptr;
    Tensor* residual_out = nullptr;
    Tensor* culprit = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, sent, &values));
    OP_REQUIRES_OK(context, context->allocate_output(1, sent, &indices));
    OP_REQUIRES_OK(context, residuals_.allocate(context, 2, TensorShape({size}), &residual_out));
    OP_REQUIRES_OK(context, context->allocate_output(3, TensorShape({}), &culprit));
    const DeviceThreads threads(context);
    const Lease workspace(workspaces_);
    OP_REQUIRES_OK(context, told(hvds_feedback_bucket_topk(
                                parts.data(), dtype_of(parts.dtype()), parts.dim_size(0), size,
                                static_cast<const float*>(residual.data()), size, bucket_, kept_, dtype_of(wire_),
                                values->data(), static_cast<int32_t*>(indices->data()),
                                static_cast<float*>(residual_out->data()), static_cast<int32_t*>(culprit->data()),
                                workspace.get(), threads.get())));
  }

 private:
  Workspaces workspaces_;
  KeptOutputs residuals_;
  int64_t kept_ = 0;
  int64_t bucket_ = 0;
  tensorflow::DataType wire_;
};

REGISTER_KERNEL_BUILDER(Name("HvdSparseFeedbackBucketTopk").Device(DEVICE_CPU), FeedbackBucketTopkOp);
REGISTER_KERNEL_BUILDER(Name("HvdSparseTopk").Device(DEVICE_CPU), SelectOp<false>);
REGISTER_KERNEL_BUILDER(Name("HvdSparseMstopk").Device(DEVICE_CPU), SelectOp<true>);
REGISTER_KERNEL_BUILDER(Name("HvdSparseFeedbackTopk").Device(DEVICE_CPU), FeedbackOp<false>);
REGISTER_KERNEL_BUILDER(Name("HvdSparseFeedbackMstopk").Device(DEVICE_CPU), FeedbackOp<true>);

}  // namespace
}  // namespace hvds
