// Splits messages from ranks that do not know each other's counts.
#include <vector>

#include "../common/op_support.h"
#include "sparse.h"
#include "tensorflow/core/framework/op.h"

namespace hvds {
namespace {

absl::Status unpack_counted_shape(InferenceContext* c) {
  ShapeHandle ignored;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &ignored));
  const auto total = c->UnknownDim();
  c->set_output(0, c->Vector(total));
  c->set_output(1, c->Vector(total));
  c->set_output(2, c->Scalar());
  return absl::OkStatus();
}

REGISTER_OP("HvdSparseUnpackCounted")
    .Input("messages: int32")
    .Output("values: T")
    .Output("indices: int32")
    .Output("nonfinite: bool")
    .Attr("T: {float, half, bfloat16}")
    .Attr("ranks: int >= 1")
    .SetShapeFn(unpack_counted_shape);

class UnpackCountedOp : public OpKernel {
 public:
  explicit UnpackCountedOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("T", &type_));
    OP_REQUIRES_OK(context, context->GetAttr("ranks", &ranks_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& messages = context->input(0);
    OP_REQUIRES(context, messages.dims() == 1,
                invalid_argument("Expected messages [words], got shape ", messages.shape().DebugString()));
    const hvds_dtype dtype = dtype_of(type_);
    const int32_t* words = messages.flat<int32_t>().data();
    std::vector<int32_t> counts(ranks_);
    bool nonfinite = false;
    const int64_t misfit =
        hvds_read_counts(words, messages.NumElements(), ranks_, dtype, counts.data(), &nonfinite);
    OP_REQUIRES(context, misfit < 0,
                invalid_argument("Expected a message of entries of ", DataTypeString(type_), " from each of ", ranks_,
                                 " ranks, got ", messages.NumElements(), " words, which do not fit from message ",
                                 misfit, " on; ranks and dtype must be the senders'"));
    int64_t total = 0;
    for (const int32_t count : counts) total += count;
    Tensor* values = nullptr;
    Tensor* indices = nullptr;
    Tensor* told = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({total}), &values));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({total}), &indices));
    OP_REQUIRES_OK(context, context->allocate_output(2, TensorShape({}), &told));
    told->scalar<bool>()() = nonfinite;
    auto* to_values = static_cast<char*>(values->data());
    int32_t* to_indices = indices->flat<int32_t>().data();
    for (const int32_t count : counts) {
      hvds_unpack(words + HVDS_HEADER_WORDS, &count, 1, dtype, to_values, to_indices);
      words += HVDS_HEADER_WORDS + hvds_message_words(count, dtype);
      to_values += count * int64_t{DataTypeSize(type_)};
      to_indices += count;
    }
  }

 private:
  tensorflow::DataType type_;
  int64_t ranks_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("HvdSparseUnpackCounted").Device(tensorflow::DEVICE_CPU), UnpackCountedOp);

}  // namespace
}  // namespace hvds
