// The TensorFlow op for held thresholds; the arithmetic is in select.h.
#include <algorithm>
#include <vector>

#include "select_pieces.h"
#include "tensorflow/core/framework/op.h"

namespace hvds {
namespace {

absl::Status held_shape(InferenceContext* c) {
  std::vector<int64_t> ends;
  TF_RETURN_IF_ERROR(c->GetAttr("ends", &ends));
  ShapeHandle each = c->Vector(static_cast<int64_t>(ends.size()));
  for (int input = 2; input < 5; ++input) TF_RETURN_IF_ERROR(c->Merge(c->input(input), each, &each));
  c->set_output(4, each);
  c->set_output(5, each);
  return pieces_shape(c);
}

REGISTER_OP("HvdSparseFeedbackHeld")
    .Input("parts: T")
    .Input("residual: float")
    .Input("k: Tk")
    .Input("thresholds: float")
    .Input("due: bool")
    .Output("values: wire_dtype")
    .Output("indices: int32")
    .Output("residual_out: float")
    .Output("culprit: int32")
    .Output("thresholds_out: float")
    .Output("clamped: bool")
    .Attr("T: {float, half, bfloat16}")
    .Attr("Tk: {int32, int64}")
    .Attr("ends: list(int) >= 1")
    .Attr("wire_dtype: {float, half, bfloat16} = DT_FLOAT")
    .SetShapeFn(held_shape);

// Each piece has a threshold, and sends between a quarter of its k, rounded up, and four times its k elements.
class FeedbackHeldOp : public PiecesKernel {
 public:
  using PiecesKernel::PiecesKernel;

  void Compute(OpKernelContext* context) override {
    std::vector<Piece> pieces;
    OP_REQUIRES_OK(context, read_pieces(context, context->input(2), &pieces));
    const Tensor& thresholds = context->input(3);
    const Tensor& due = context->input(4);
    const TensorShape each({static_cast<int64_t>(pieces.size())});
    OP_REQUIRES(context, thresholds.shape() == each && due.shape() == each,
                invalid_argument("Expected thresholds and due ", each.DebugString(), ", got shapes ",
                                 thresholds.shape().DebugString(), " and ", due.shape().DebugString(), "."));
    const auto without = std::find_if(pieces.begin(), pieces.end(), [](const Piece& piece) { return piece.kept < 1; });
    OP_REQUIRES(context, without == pieces.end(),
                invalid_argument("Expected k of at least 1, as a threshold is the k-th magnitude, got 0."));
    Tensor* thresholds_out = nullptr;
    Tensor* clamped = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(4, each, &thresholds_out));
    OP_REQUIRES_OK(context, context->allocate_output(5, each, &clamped));
    select_from(context, pieces, [&](const PieceCall& call) {
      const int64_t kept = call.piece.kept;
      hvds_holding holding{due.flat<bool>()(call.number), kept, (kept + 3) / 4, std::min(4 * kept, call.piece.size)};
      float threshold = thresholds.flat<float>()(call.number);
      int32_t acted = 0;
      const int status = hvds_feedback_held(call.parts, call.dtype, call.count, call.stride, call.residual,
                                            call.piece.size, &holding, call.wire, &threshold, call.residual_out,
                                            call.culprit, call.sent, &acted, call.workspace, call.parallel);
      thresholds_out->flat<float>()(call.number) = threshold;
      clamped->flat<bool>()(call.number) = acted != 0;
      return status;
    });
  }
};

REGISTER_KERNEL_BUILDER(Name("HvdSparseFeedbackHeld").Device(tensorflow::DEVICE_CPU), FeedbackHeldOp);

}  // namespace
}  // namespace hvds
