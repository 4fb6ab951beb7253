// The TensorFlow operation of gradient dropping; the arithmetic is in select.h.
#include <algorithm>
#include <cmath>

#include "select.h"
#include "select_arguments.h"
#include "select_workspaces.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace hvds {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

constexpr int64_t kLeastSamples = 1024;

absl::Status sampled_shape(InferenceContext* c) {
  ShapeHandle parts, residual, scalar;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &parts));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &residual));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 0, &scalar));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(3), 0, &scalar));
  DimensionHandle size;
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(parts, 1), c->Dim(residual, 0), &size));
  const DimensionHandle sent = c->UnknownDim();
  c->set_output(0, c->Vector(sent));
  c->set_output(1, c->Vector(sent));
  c->set_output(2, c->Vector(size));
  c->set_output(3, c->Scalar());
  return absl::OkStatus();
}

REGISTER_OP("HvdSparseFeedbackSampled")
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
    .Attr("sample: float = 0.001")
    .Attr("wire_dtype: {float, half, bfloat16} = DT_FLOAT")
    .SetShapeFn(sampled_shape);

class FeedbackSampledOp : public OpKernel {
 public:
  explicit FeedbackSampledOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("sample", &sample_));
    OP_REQUIRES_OK(context, context->GetAttr("wire_dtype", &wire_));
    OP_REQUIRES(context, sample_ > 0 && sample_ <= 1,
                invalid_argument("Expected sample in (0, 1], got ", sample_, "."));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& parts = context->input(0);
    const Tensor& residual = context->input(1);
    OP_REQUIRES_OK(context, check_parts(parts, residual));
    const int64_t size = parts.dim_size(1);
    OP_REQUIRES_OK(context, check_size(size));
    OP_REQUIRES_OK(context, check_number(context->input(2), "k"));
    OP_REQUIRES_OK(context, check_number(context->input(3), "seed"));
    const int64_t kept = number_of(context->input(2));
    OP_REQUIRES_OK(context, check_kept(kept, size));
    Tensor* residual_out = nullptr;
    Tensor* culprit = nullptr;
    OP_REQUIRES_OK(context, residuals_.allocate(context, 2, TensorShape({size}), &residual_out));
    OP_REQUIRES_OK(context, context->allocate_output(3, TensorShape({}), &culprit));
    const DeviceThreads threads(context);
    const Lease workspace(workspaces_);
    const hvds_sampling sampling = sampling_of(size, kept, number_of(context->input(3)));
    int64_t sent = 0;
    OP_REQUIRES_OK(context, told(hvds_feedback_sampled(
                                parts.data(), dtype_of(parts.dtype()), parts.dim_size(0), size,
                                static_cast<const float*>(residual.data()), size, &sampling, dtype_of(wire_),
                                static_cast<float*>(residual_out->data()), static_cast<int32_t*>(culprit->data()),
                                &sent, workspace.get(), threads.get())));
    Tensor* values = nullptr;
    Tensor* indices = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({sent}), &values));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({sent}), &indices));
    hvds_take_sampled(workspace.get(), dtype_of(wire_), values->data(), static_cast<int32_t*>(indices->data()));
  }

 private:
  // A share of the vector, but of a short one enough to tell something; between half of k and twice k may be sent.
  hvds_sampling sampling_of(int64_t size, int64_t kept, int64_t seed) const {
    const auto share = static_cast<int64_t>(std::ceil(static_cast<double>(sample_) * static_cast<double>(size)));
    const int64_t samples = std::max<int64_t>(1, std::min(size, std::max(share, kLeastSamples)));
    const double of_sample = static_cast<double>(kept) * static_cast<double>(samples) / static_cast<double>(size);
    const int64_t rank = size == 0 ? 0 : std::max<int64_t>(1, static_cast<int64_t>(of_sample + 0.5));
    return {samples, rank, static_cast<uint64_t>(seed), (kept + 1) / 2, 2 * kept, kept};
  }

  Workspaces workspaces_;
  KeptOutputs residuals_;
  float sample_ = 0;
  tensorflow::DataType wire_;
};

REGISTER_KERNEL_BUILDER(Name("HvdSparseFeedbackSampled").Device(tensorflow::DEVICE_CPU), FeedbackSampledOp);

}  // namespace
}  // namespace hvds
