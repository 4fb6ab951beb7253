// The averaging by datagrams as a TensorFlow op; see datagrams.h.
#include <utility>

#include "../common/op_support.h"
#include "../common/waiters.h"
#include "datagrams.h"
#include "tensorflow/core/framework/op.h"

namespace hvds {
namespace {

using tensorflow::AsyncOpKernel;

absl::Status average_shape(InferenceContext* c) {
  ShapeHandle vector, scalar;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &vector));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &scalar));
  int64_t size = 0, ranks = 0;
  TF_RETURN_IF_ERROR(c->GetAttr("size", &size));
  TF_RETURN_IF_ERROR(c->GetAttr("ranks", &ranks));
  TF_RETURN_IF_ERROR(c->Merge(vector, c->Vector(size), &vector));
  c->set_output(0, vector);
  c->set_output(1, c->Matrix(4, ranks));
  c->set_output(2, scalar);
  return absl::OkStatus();
}

// Stateful: rounds follow one another, and none may be skipped or computed in advance.
REGISTER_OP("HvdDatagramsAverage")
    .Input("vector: float")
    .Input("round: int64")
    .Output("mean: float")
    .Output("counts: int64")
    .Output("averaged: int64")
    .Attr("endpoint: int")
    .Attr("size: int >= 1")
    .Attr("ranks: int >= 1")
    .SetIsStateful()
    .SetShapeFn(average_shape);

class DatagramsAverageOp : public AsyncOpKernel {
 public:
  explicit DatagramsAverageOp(OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("endpoint", &endpoint_));
    OP_REQUIRES_OK(context, context->GetAttr("size", &size_));
    OP_REQUIRES_OK(context, context->GetAttr("ranks", &ranks_));
    OP_REQUIRES(context, hvds_datagrams_fits(endpoint_, size_, ranks_) != 0,
                invalid_argument("Expected the number of an open channel for ", size_, " elements and ", ranks_,
                                 " ranks, got ", endpoint_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const Tensor& vector = context->input(0);
    const Tensor& round = context->input(1);
    OP_REQUIRES_ASYNC(context, vector.shape() == TensorShape({size_}),
                      invalid_argument("Expected a vector of ", size_, " elements, got shape ",
                                       vector.shape().DebugString()),
                      done);
    OP_REQUIRES_ASYNC(context, round.dims() == 0,
                      invalid_argument("Expected the round as a scalar, got shape ", round.shape().DebugString()),
                      done);
    Tensor *mean = nullptr, *counts = nullptr, *averaged = nullptr;
    OP_REQUIRES_OK_ASYNC(context, means_.allocate(context, 0, vector.shape(), &mean), done);
    OP_REQUIRES_OK_ASYNC(context, context->allocate_output(1, TensorShape({4, ranks_}), &counts), done);
    OP_REQUIRES_OK_ASYNC(context, context->allocate_output(2, TensorShape({}), &averaged), done);
    Waiters::instance().run([this, context, mean, counts, averaged, done = std::move(done)] {
      char message[HVDS_MESSAGE];
      const int64_t result = hvds_datagrams_average(
          endpoint_, context->input(0).flat<float>().data(), 1, context->input(1).scalar<int64_t>()(),
          mean->flat<float>().data(), counts->flat<int64_t>().data(), message);
      averaged->scalar<int64_t>()() = result;
      if (result < 0) context->SetStatus(absl::AbortedError(absl::StrCat("Averaging by datagrams failed: ", message)));
      done();
    });
  }

 private:
  int64_t endpoint_, size_, ranks_;
  KeptOutputs means_;
};

REGISTER_KERNEL_BUILDER(Name("HvdDatagramsAverage").Device(tensorflow::DEVICE_CPU), DatagramsAverageOp);

}  // namespace
}  // namespace hvds
