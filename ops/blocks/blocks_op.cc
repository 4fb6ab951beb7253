// TensorFlow ops for blocks that take turns; the passes over memory are in blocks.h.
#include "../common/op_support.h"
#include "blocks.h"
#include "tensorflow/core/framework/op.h"

namespace hvds {
namespace {

using tensorflow::DEVICE_CPU;

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

// What all three ops have as attributes: the numbers of pieces and blocks.
class Dealer {
 public:
  absl::Status read(OpKernelConstruction* context) {
    TF_RETURN_IF_ERROR(context->GetAttr("pieces", &pieces_));
    return context->GetAttr("blocks", &blocks_);
  }

  // The deal of a vector, and whose turn it is in a step.
  absl::Status deal(int64_t size, const Tensor& step, hvds_deal* deal, int64_t* turn) const {
    if (size < 1 || size > kMost) {
      return invalid_argument("Expected a vector of 1 to 2^31 - 1 elements, got ", size);
    }
    if (step.dims() != 0 || step.scalar<int64_t>()() < 0) {
      return invalid_argument("Expected a scalar step of at least 0, got ", step.DebugString());
    }
    *deal = hvds_deal_of(size, pieces_, blocks_);
    *turn = step.scalar<int64_t>()() % deal->cycle;
    return absl::OkStatus();
  }

  static absl::Status check(const char* name, const Tensor& values, const hvds_deal& deal) {
    if (values.shape() == shape(deal)) return absl::OkStatus();
    return invalid_argument("Expected ", name, " [", deal.pieces, ", ", deal.each, "], as a block has of ", deal.size,
                            " elements, got shape ", values.shape().DebugString());
  }

  static TensorShape shape(const hvds_deal& deal) { return TensorShape({deal.pieces, deal.each}); }

 private:
  int64_t pieces_ = 1;
  int64_t blocks_ = 1;
};

// The shape of a block's values of a vector; unknown if the vector's size is.
absl::Status block_shape(InferenceContext* c, DimensionHandle size, ShapeHandle* values) {
  int64_t pieces = 1, blocks = 1;
  TF_RETURN_IF_ERROR(c->GetAttr("pieces", &pieces));
  TF_RETURN_IF_ERROR(c->GetAttr("blocks", &blocks));
  const bool known = c->ValueKnown(size) && c->Value(size) > 0;
  *values = c->Matrix(c->MakeDim(pieces),
                      known ? c->MakeDim(hvds_deal_of(c->Value(size), pieces, blocks).each) : c->UnknownDim());
  return absl::OkStatus();
}

absl::Status take_shape(InferenceContext* c) {
  ShapeHandle total, values, ignored;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &total));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &ignored));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 0, &ignored));
  TF_RETURN_IF_ERROR(block_shape(c, c->Dim(total, 0), &values));
  c->set_output(0, total);
  c->set_output(1, values);
  c->set_output(2, c->Scalar());
  return absl::OkStatus();
}

absl::Status keep_shape(InferenceContext* c) {
  ShapeHandle kept, values;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &kept));
  TF_RETURN_IF_ERROR(block_shape(c, c->Dim(kept, 0), &values));
  TF_RETURN_IF_ERROR(c->Merge(c->input(1), values, &values));
  TF_RETURN_IF_ERROR(c->Merge(c->input(2), values, &values));
  c->set_output(0, kept);
  return absl::OkStatus();
}

absl::Status spread_shape(InferenceContext* c) {
  int64_t size = 0;
  ShapeHandle values;
  TF_RETURN_IF_ERROR(c->GetAttr("size", &size));
  TF_RETURN_IF_ERROR(block_shape(c, c->MakeDim(size), &values));
  TF_RETURN_IF_ERROR(c->Merge(c->input(0), values, &values));
  c->set_output(0, c->Vector(size));
  return absl::OkStatus();
}

REGISTER_OP("HvdTakeBlock")
    .Input("total: float")
    .Input("residual: float")
    .Input("step: int64")
    .Output("sum: float")
    .Output("values: float")
    .Output("finite: bool")
    .Attr("pieces: int >= 1")
    .Attr("blocks: int >= 1")
    .SetShapeFn(take_shape);

REGISTER_OP("HvdKeepBlock")
    .Input("kept: float")
    .Input("values: float")
    .Input("decoded: float")
    .Input("step: int64")
    .Output("remaining: float")
    .Attr("pieces: int >= 1")
    .Attr("blocks: int >= 1")
    .SetShapeFn(keep_shape);

REGISTER_OP("HvdSpreadBlock")
    .Input("values: float")
    .Input("step: int64")
    .Input("divisor: float")
    .Output("mean: T")
    .Attr("size: int >= 1")
    .Attr("pieces: int >= 1")
    .Attr("blocks: int >= 1")
    .Attr("T: {float, half, bfloat16}")
    .SetShapeFn(spread_shape);

class TakeBlockOp : public OpKernel {
 public:
  explicit TakeBlockOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, dealer_.read(context));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& total = context->input(0);
    const Tensor& residual = context->input(1);
    const int64_t size = total.NumElements();
    OP_REQUIRES(context, total.dims() == 1 && residual.dims() == 1 &&
                             (residual.NumElements() == 0 || residual.NumElements() == size),
                invalid_argument("Expected total [d] and residual [d] or [0], got shapes ",
                                 total.shape().DebugString(), " and ", residual.shape().DebugString()));
    hvds_deal deal;
    int64_t turn = 0;
    OP_REQUIRES_OK(context, dealer_.deal(size, context->input(2), &deal, &turn));
    Tensor* sum = nullptr;
    Tensor* values = nullptr;
    Tensor* finite = nullptr;
    OP_REQUIRES_OK(context, sums_.allocate(context, 0, total.shape(), &sum));
    OP_REQUIRES_OK(context, values_.allocate(context, 1, Dealer::shape(deal), &values));
    OP_REQUIRES_OK(context, context->allocate_output(2, TensorShape({}), &finite));
    const float* addend = residual.NumElements() == 0 ? nullptr : residual.flat<float>().data();
    const DeviceThreads threads(context);
    finite->scalar<bool>()() = hvds_take_block(total.flat<float>().data(), addend, &deal, turn,
                                               sum->flat<float>().data(), values->flat<float>().data(), threads.get());
  }

 private:
  Dealer dealer_;
  KeptOutputs sums_;
  KeptOutputs values_;
};

class KeepBlockOp : public OpKernel {
 public:
  explicit KeepBlockOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, dealer_.read(context));
  }

  void Compute(OpKernelContext* context) override {
    const TensorShape shape = context->input(0).shape();  // no other holder, so that it can be overwritten
    const float* from = context->input(0).flat<float>().data();
    const Tensor& values = context->input(1);
    const Tensor& decoded = context->input(2);
    OP_REQUIRES(context, shape.dims() == 1,
                invalid_argument("Expected kept [d], got shape ", shape.DebugString()));
    hvds_deal deal;
    int64_t turn = 0;
    OP_REQUIRES_OK(context, dealer_.deal(shape.num_elements(), context->input(3), &deal, &turn));
    OP_REQUIRES_OK(context, Dealer::check("values", values, deal));
    OP_REQUIRES_OK(context, Dealer::check("decoded", decoded, deal));
    Tensor* remaining = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, shape, &remaining));
    float* to = remaining->flat<float>().data();
    if (to != from) std::copy_n(from, shape.num_elements(), to);
    const DeviceThreads threads(context);
    hvds_keep_block(values.flat<float>().data(), decoded.flat<float>().data(), &deal, turn, to, threads.get());
  }

 private:
  Dealer dealer_;
};

class SpreadBlockOp : public OpKernel {
 public:
  explicit SpreadBlockOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, dealer_.read(context));
    OP_REQUIRES_OK(context, context->GetAttr("size", &size_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& values = context->input(0);
    const Tensor& divisor = context->input(2);
    OP_REQUIRES(context, divisor.dims() == 0,
                invalid_argument("Expected a scalar divisor, got shape ", divisor.shape().DebugString()));
    hvds_deal deal;
    int64_t turn = 0;
    OP_REQUIRES_OK(context, dealer_.deal(size_, context->input(1), &deal, &turn));
    OP_REQUIRES_OK(context, Dealer::check("values", values, deal));
    Tensor* mean = nullptr;
    OP_REQUIRES_OK(context, means_.allocate(context, 0, TensorShape({size_}), &mean));
    const DeviceThreads threads(context);
    hvds_spread_block(values.flat<float>().data(), &deal, turn, divisor.scalar<float>()(), mean->data(),
                      dtype_of(mean->dtype()), threads.get());
  }

 private:
  Dealer dealer_;
  int64_t size_ = 1;
  KeptOutputs means_;
};

REGISTER_KERNEL_BUILDER(Name("HvdTakeBlock").Device(DEVICE_CPU), TakeBlockOp);
REGISTER_KERNEL_BUILDER(Name("HvdKeepBlock").Device(DEVICE_CPU), KeepBlockOp);
REGISTER_KERNEL_BUILDER(Name("HvdSpreadBlock").Device(DEVICE_CPU), SpreadBlockOp);

}  // namespace
}  // namespace hvds
