// Turns several sums into means in place, in one op, and checks that they are finite.
#include "../common/op_support.h"
#include "sparse.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace hvds {
namespace {

absl::Status means_shape(InferenceContext* c) {
  const int count = c->num_inputs() - 2;
  ShapeHandle ignored;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(count), 0, &ignored));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(count + 1), 1, &ignored));
  for (int each = 0; each < count; ++each) c->set_output(each, c->input(each));
  c->set_output(count, c->Scalar());
  return absl::OkStatus();
}

REGISTER_OP("HvdSparseMeans")
    .Input("totals: N * T")
    .Input("divisor: float")
    .Input("residual: float")
    .Output("means: N * T")
    .Output("nonfinite: bool")
    .Attr("N: int >= 1")
    .Attr("T: {float, half, bfloat16}")
    .SetShapeFn(means_shape);

class MeansOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const int count = context->num_inputs() - 2;
    const Tensor& divisor = context->input(count);
    const Tensor& residual = context->input(count + 1);
    OP_REQUIRES_OK(context, check(context, count, divisor, residual));
    Tensor* nonfinite = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(count, TensorShape({}), &nonfinite));
    const DeviceThreads threads(context);
    const float* addend = residual.NumElements() > 0 ? residual.flat<float>().data() : nullptr;
    bool finite = true;
    for (int each = 0; each < count; ++each) {
      const Tensor total = context->input(each);
      Tensor* mean = nullptr;
      OP_REQUIRES_OK(context, output(context, each, total.shape(), &mean));
      const hvds_dtype dtype = dtype_of(total.dtype());
      const int64_t size = total.NumElements();
      finite &= hvds_mean(total.data(), dtype, divisor.scalar<float>()(), mean->data(), dtype, size, threads.get());
      if (addend == nullptr) continue;
      finite &= hvds_add(addend, mean->data(), dtype, size);
      addend += size;
    }
    nonfinite->scalar<bool>()() = !finite;
  }

 private:
  static absl::Status check(OpKernelContext* context, int count, const Tensor& divisor, const Tensor& residual) {
    if (divisor.dims() != 0) {
      return invalid_argument("Expected a scalar divisor, got shape ", divisor.shape().DebugString());
    }
    int64_t size = 0;
    for (int each = 0; each < count; ++each) size += context->input(each).NumElements();
    if (residual.dims() == 1 && (residual.NumElements() == 0 || residual.NumElements() == size)) return absl::OkStatus();
    return invalid_argument("Expected residual of [0] or [", size, "], got shape ", residual.shape().DebugString());
  }

  // Overwrites the total if it has no other holders, as is the case for a collective's output.
  static absl::Status output(OpKernelContext* context, int each, const TensorShape& shape, Tensor** mean) {
    return context->forward_input_or_allocate_output({each}, each, shape, mean);
  }
};

REGISTER_KERNEL_BUILDER(Name("HvdSparseMeans").Device(tensorflow::DEVICE_CPU), MeansOp);

}  // namespace
}  // namespace hvds
