// A tensor handed on as it is, as something that nothing can know before the graph runs.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace hvds {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;

// TensorFlow computes what depends on constants alone when it optimises a graph, once for each graph: a collective would
// then wait, on one rank alone, for others that have yet to begin the step. The second input is the value of a variable.
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
// Nothing is read on the device, so the same code serves; without it the tensor would be moved to the host and back.
REGISTER_KERNEL_BUILDER(Name("HvdSparseUnknown").Device(tensorflow::DEVICE_GPU).HostMemory("unknown"), UnknownOp);

}  // namespace
}  // namespace hvds
