// Passes a tensor through as a value that graph optimization cannot know in advance.
#include "../common/names_op.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace hvds {
namespace {

// When TensorFlow optimizes a graph, it evaluates the parts that depend only on constants, once per graph: a collective
// among them would then wait, on one rank only, for others that have yet to begin the step. The second input is the
// value of a variable.
REGISTER_OP("HvdSparseUnknown")
    .Input("tensor: T")
    .Input("unknown: int32")
    .Output("same: T")
    .Attr("T: type")
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape);

class UnknownOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override { context->set_output(0, context->input(0)); }

  bool IsExpensive() override { return false; }
};

REGISTER_KERNEL_BUILDER(Name("HvdSparseUnknown").Device(tensorflow::DEVICE_CPU), UnknownOp);
// Nothing is read on the device, so the same code serves; without it the tensor would be copied to the host and back.
REGISTER_KERNEL_BUILDER(Name("HvdSparseUnknown").Device(tensorflow::DEVICE_GPU).HostMemory("unknown"), UnknownOp);

}  // namespace
}  // namespace hvds
