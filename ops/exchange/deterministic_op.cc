// Whether tf.config.experimental.enable_op_determinism was called; Python has no public name for this query.
#include "../common/names_op.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/util/determinism.h"

namespace hvds {
namespace {

REGISTER_OP("HvdSparseIsDeterministic")
    .Output("deterministic: bool")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);

class IsDeterministicOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    Tensor* deterministic = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &deterministic));
    deterministic->scalar<bool>()() = tensorflow::OpDeterminismRequired();
  }
};

REGISTER_KERNEL_BUILDER(Name("HvdSparseIsDeterministic").Device(tensorflow::DEVICE_CPU), IsDeterministicOp);

}  // namespace
}  // namespace hvds
