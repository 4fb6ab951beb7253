// The time at which execution reaches this op, for telemetry.
#include <chrono>

#include "../common/names_op.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace hvds {
namespace {

// Not stateful: tf.function runs stateful ops one after another, so clocks on parallel branches would serialize those.
REGISTER_OP("HvdSparseClock")
    .Input("unknown: double")
    .Output("seconds: double")
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);

class ClockOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    Tensor* seconds = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &seconds));
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    seconds->scalar<double>()() = std::chrono::duration<double>(now).count();
  }
};

REGISTER_KERNEL_BUILDER(Name("HvdSparseClock").Device(tensorflow::DEVICE_CPU), ClockOp);

}  // namespace
}  // namespace hvds
