// A TensorFlow op that moves variables into large pages.
#include "../common/large_pages.h"
#include "../common/variables_op.h"
#include "tensorflow/core/framework/op.h"

namespace hvds {
namespace {

// Stateful, so that graph optimization leaves it in place. Values do not change; variables whose value others hold get
// a copy of their own.
REGISTER_OP("HvdServersUseLargePages")
    .Input("variables: N * resource")
    .Attr("N: int >= 0")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext*) { return absl::OkStatus(); });

class UseLargePagesOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    Variables variables(Access::kUpdate);
    OP_REQUIRES_OK(context, variables.add(context, "variables"));
    OP_REQUIRES_OK(context, variables.lock());
    for (int number = 0; number < context->num_inputs(); ++number) {
      const Tensor* value = nullptr;
      float* memory = nullptr;
      OP_REQUIRES_OK(context, variables.value(number, &value));
      OP_REQUIRES(context, value->dtype() == tensorflow::DT_FLOAT,
                  invalid_argument("Expected variables of float, got ", DataTypeString(value->dtype()), "."));
      OP_REQUIRES_OK(context, variables.writable(context, number, &memory));
      move_to_large_pages(memory, value->TotalBytes());
    }
  }
};

REGISTER_KERNEL_BUILDER(Name("HvdServersUseLargePages").Device(tensorflow::DEVICE_CPU), UseLargePagesOp);

}  // namespace
}  // namespace hvds
