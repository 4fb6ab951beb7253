// The last step of an exchange: raises an error, on all ranks alike, if any rank's gradient was not finite.
#include <string>
#include <vector>

#include "../common/op_support.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace hvds {
namespace {

absl::Status culprits_shape(InferenceContext* c) {
  std::vector<std::string> labels;
  TF_RETURN_IF_ERROR(c->GetAttr("labels", &labels));
  ShapeHandle culprits;
  TF_RETURN_IF_ERROR(c->Merge(c->input(0), c->Vector(static_cast<int64_t>(labels.size())), &culprits));
  c->set_output(0, culprits);
  return absl::OkStatus();
}

REGISTER_OP("HvdSparseCheckFaults")
    .Input("culprits: int32")
    .Output("checked: int32")
    .Attr("labels: list(string)")
    .Attr("remedy: string")
    .SetIsStateful()  // it may raise; otherwise graph optimization could remove it
    .SetShapeFn(culprits_shape);

class CheckFaultsOp : public OpKernel {
 public:
  explicit CheckFaultsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("labels", &labels_));
    OP_REQUIRES_OK(context, context->GetAttr("remedy", &remedy_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& culprits = context->input(0);
    const auto expected = static_cast<int64_t>(labels_.size());
    OP_REQUIRES(context, culprits.dims() == 1 && culprits.NumElements() == expected,
                invalid_argument("Expected culprits [", expected, "], one for each label, got shape ",
                                 culprits.shape().DebugString()));
    std::string found;
    for (int64_t i = 0; i < expected; ++i) {
      const int32_t culprit = culprits.flat<int32_t>()(i);
      if (culprit == 0) continue;
      found += (found.empty() ? "" : ", ") + labels_[i];
      found += culprit > 0 ? " on rank " + std::to_string(culprit - 1) : " in the sum over the ranks, of whom none has any";
    }
    OP_REQUIRES(context, found.empty(),
                invalid_argument("The gradient holds a NaN or an infinity: ", found, ". ", remedy_));
    context->set_output(0, culprits);
  }

 private:
  std::vector<std::string> labels_;
  std::string remedy_;
};

REGISTER_KERNEL_BUILDER(Name("HvdSparseCheckFaults").Device(tensorflow::DEVICE_CPU), CheckFaultsOp);

}  // namespace
}  // namespace hvds
