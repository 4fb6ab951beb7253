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
  c->set_output(0, values);
  c->set_output(1, c->Scalar());
  return absl::OkStatus();
}

absl::Status keep_shape(InferenceContext* c) {
  ShapeHandle total, values, ignored;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &total));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &ignored));
  TF_RETURN_IF_ERROR(block_shape(c, c->Dim(total, 0), &values));
  TF_RETURN_IF_ERROR(c->Merge(c->input(2), values, &values));
  TF_RETURN_IF_ERROR(c->Merge(c->input(3), values, &values));
  c->set_output(0, total);
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
    .Output("values: float")
    .Output("finite: bool")
    .Attr("pieces: int >= 1")
    .Attr("blocks: int >= 1")
    .SetShapeFn(take_shape);

REGISTER_OP("HvdKeepBlock")
    .Input("total: float")
    .Input("residual: float")
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

// The inputs total [d] and residual [d] or [0], and whose turn it is.
struct Given {
  absl::Status read(OpKernelContext* context, const Dealer& dealer, int step) {
    const Tensor& total = context->input(0);
    const Tensor& residual = context->input(1);
    if (total.dims() != 1 || residual.dims() != 1 ||
        (residual.NumElements() != 0 && residual.NumElements() != total.NumElements())) {
      return invalid_argument("Expected total [d] and residual [d] or [0], got shapes ", total.shape().DebugString(),
                              " and ", residual.shape().DebugString());
    }
    addends = total.flat<float>().data();
    others = residual.NumElements() == 0 ? nullptr : residual.flat<float>().data();
    return dealer.deal(total.NumElements(), context->input(step), &deal, &turn);
  }

  const float* addends = nullptr;
  const float* others = nullptr;  // null for zeros
  hvds_deal deal;
  int64_t turn = 0;
};

class TakeBlockOp : public OpKernel {
 public:
  explicit TakeBlockOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, dealer_.read(context));
  }

  void Compute(OpKernelContext* context) override {
    Given given;
    OP_REQUIRES_OK(context, given.read(context, dealer_, 2));
    Tensor* values = nullptr;
    Tensor* finite = nullptr;
    OP_REQUIRES_OK(context, values_.allocate(context, 0, Dealer::shape(given.deal), &values));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({}), &finite));
    const DeviceThreads threads(context);
    finite->scalar<bool>()() = hvds_take_block(given.addends, given.others, &given.deal, given.turn,
                                               values->flat<float>().data(), threads.get());
  }

 private:
  Dealer dealer_;
  KeptOutputs values_;
};

class KeepBlockOp : public OpKernel {
 public:
  explicit KeepBlockOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, dealer_.read(context));
  }

  void Compute(OpKernelContext* context) override {
    Given given;
    OP_REQUIRES_OK(context, given.read(context, dealer_, 4));
    const Tensor& values = context->input(2);
    const Tensor& decoded = context->input(3);
    OP_REQUIRES_OK(context, Dealer::check("values", values, given.deal));
    OP_REQUIRES_OK(context, Dealer::check("decoded", decoded, given.deal));
    Tensor* remaining = nullptr;
    OP_REQUIRES_OK(context, remaining_.allocate(context, 0, context->input(0).shape(), &remaining));
    const DeviceThreads threads(context);
    hvds_keep_block(given.addends, given.others, values.flat<float>().data(), decoded.flat<float>().data(),
                    &given.deal, given.turn, remaining->flat<float>().data(), threads.get());
  }

 private:
  Dealer dealer_;
  KeptOutputs remaining_;
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
