// TensorFlow ops for momentum on the sender's side; the arithmetic is in momentum.h.
#include "momentum.h"
#include "momentum_arguments.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace hvds {
namespace {

absl::Status momentum_shape(InferenceContext* c) {
  ShapeHandle parts, velocity, scalar;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &parts));
  TF_RETURN_IF_ERROR(c->Merge(c->input(1), c->Vector(c->Dim(parts, 1)), &velocity));
  for (const int number : {2, 3}) TF_RETURN_IF_ERROR(c->WithRank(c->input(number), 0, &scalar));
  c->set_output(0, velocity);
  c->set_output(1, velocity);
  c->set_output(2, c->Scalar());
  return absl::OkStatus();
}

absl::Status clear_shape(InferenceContext* c) {
  ShapeHandle vector, indices;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &vector));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &indices));
  c->set_output(0, vector);
  return absl::OkStatus();
}

REGISTER_OP("HvdSparseMomentum")
    .Input("parts: T")
    .Input("velocity: float")
    .Input("decay: float")
    .Input("gain: float")
    .Output("velocity_out: float")
    .Output("moves: float")
    .Output("culprit: int32")
    .Attr("T: {float, half, bfloat16}")
    .Attr("nesterov: bool")
    .SetShapeFn(momentum_shape);

REGISTER_OP("HvdSparseClear")
    .Input("vector: float")
    .Input("indices: int32")
    .Output("cleared: float")
    .SetShapeFn(clear_shape);

class MomentumOp : public OpKernel {
 public:
  explicit MomentumOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("nesterov", &nesterov_));
  }

  void Compute(OpKernelContext* context) override {
    const MomentumArguments given(context);
    OP_REQUIRES_OK(context, given.check());
    const TensorShape shape = given.velocity.shape();
    const float* velocity = given.velocity.flat<float>().data();
    Tensor* velocity_out = nullptr;
    Tensor* moves = nullptr;
    Tensor* culprit = nullptr;
    OP_REQUIRES_OK(context, velocity_output(context, shape, &velocity_out));
    if (nesterov_) OP_REQUIRES_OK(context, moves_.allocate(context, 1, shape, &moves));
    OP_REQUIRES_OK(context, context->allocate_output(2, TensorShape({}), &culprit));
    const DeviceThreads threads(context);
    culprit->scalar<int32_t>()() =
        hvds_momentum(given.parts.data(), dtype_of(given.parts.dtype()), given.count(), given.size(), velocity,
                      given.decay.scalar<float>()(), given.gain.scalar<float>()(), velocity_out->flat<float>().data(),
                      nesterov_ ? moves->flat<float>().data() : nullptr, threads.get());
    if (!nesterov_) context->set_output(1, *velocity_out);
  }

 private:
  // In place if the velocity has no other holders, which is never the case for a variable's value.
  absl::Status velocity_output(OpKernelContext* context, const TensorShape& shape, Tensor** output) {
    if (context->forward_input_to_output_with_shape(1, 0, shape, output)) return absl::OkStatus();
    return velocities_.allocate(context, 0, shape, output);
  }

  bool nesterov_ = false;
  KeptOutputs velocities_;
  KeptOutputs moves_;
};

class ClearOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& vector = context->input(0);
    const Tensor& indices = context->input(1);
    OP_REQUIRES_OK(context, check_clearing(vector, indices));
    const float* from = vector.flat<float>().data();
    const int64_t size = vector.NumElements();
    const int32_t* places = indices.flat<int32_t>().data();
    Tensor* cleared = nullptr;
    OP_REQUIRES_OK(context, output(context, &cleared));
    const DeviceThreads threads(context);
    const int64_t misplaced =
        hvds_clear(from, size, places, indices.NumElements(), cleared->flat<float>().data(), threads.get());
    OP_REQUIRES(context, misplaced < 0,
                invalid_argument("Expected indices in [0, ", size, "), got ", places[misplaced], " at position ",
                                 misplaced, " of ", indices.NumElements()));
  }

 private:
  // In place if the vector has no other holders.
  absl::Status output(OpKernelContext* context, Tensor** cleared) {
    const TensorShape shape = context->input(0).shape();
    if (context->forward_input_to_output_with_shape(0, 0, shape, cleared)) return absl::OkStatus();
    return vectors_.allocate(context, 0, shape, cleared);
  }

  KeptOutputs vectors_;
};

REGISTER_KERNEL_BUILDER(Name("HvdSparseClear").Device(tensorflow::DEVICE_CPU), ClearOp);
REGISTER_KERNEL_BUILDER(Name("HvdSparseMomentum").Device(tensorflow::DEVICE_CPU), MomentumOp);

}  // namespace
}  // namespace hvds
