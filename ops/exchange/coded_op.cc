// Splits messages of coded values from ranks that do not know each other's counts.
#include <numeric>

#include "../common/op_support.h"
#include "coded.h"
#include "tensorflow/core/framework/op.h"

namespace hvds {
namespace {

absl::Status unpack_coded_shape(InferenceContext* c) {
  ShapeHandle ignored;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &ignored));
  int64_t ranks = 0;
  TF_RETURN_IF_ERROR(c->GetAttr("ranks", &ranks));
  for (int output = 0; output < 3; ++output) c->set_output(output, c->Vector(c->UnknownDim()));
  c->set_output(3, c->Matrix(3, ranks));
  c->set_output(4, c->Scalar());
  return absl::OkStatus();
}

REGISTER_OP("HvdSparseUnpackCoded")
    .Input("messages: int32")
    .Output("indices: int32")
    .Output("scales: float")
    .Output("codes: uint8")
    .Output("lengths: int32")
    .Output("nonfinite: bool")
    .Attr("ranks: int >= 1")
    .SetShapeFn(unpack_coded_shape);

class UnpackCodedOp : public OpKernel {
 public:
  explicit UnpackCodedOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("ranks", &ranks_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& messages = context->input(0);
    OP_REQUIRES(context, messages.dims() == 1,
                invalid_argument("Expected messages [words], got shape ", messages.shape().DebugString()));
    const int32_t* words = messages.flat<int32_t>().data();
    Tensor* lengths = nullptr;
    Tensor* told = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(3, TensorShape({3, ranks_}), &lengths));
    OP_REQUIRES_OK(context, context->allocate_output(4, TensorShape({}), &told));
    const int32_t* each = lengths->flat<int32_t>().data();
    const int64_t misfit = hvds_read_coded(words, messages.NumElements(), ranks_, lengths->flat<int32_t>().data(),
                                           &told->scalar<bool>()());
    OP_REQUIRES(context, misfit < 0,
                invalid_argument("Expected a message of coded values from each of ", ranks_, " ranks, got ",
                                 messages.NumElements(), " words, which do not fit from message ", misfit,
                                 " on; the senders must be so many ranks with the same recipe"));
    Tensor* outputs[3];
    for (int output = 0; output < 3; ++output) {
      const int64_t total = std::accumulate(each + output * ranks_, each + (output + 1) * ranks_, int64_t{0});
      OP_REQUIRES_OK(context, context->allocate_output(output, TensorShape({total}), &outputs[output]));
    }
    hvds_unpack_coded(words, each, ranks_, outputs[0]->flat<int32_t>().data(), outputs[1]->flat<float>().data(),
                      outputs[2]->flat<uint8_t>().data());
  }

 private:
  int64_t ranks_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("HvdSparseUnpackCoded").Device(tensorflow::DEVICE_CPU), UnpackCodedOp);

}  // namespace
}  // namespace hvds
