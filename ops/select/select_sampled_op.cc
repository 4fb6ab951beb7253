// The TensorFlow op for gradient dropping; the arithmetic is in select.h.
#include <algorithm>
#include <cmath>
#include <vector>

#include "select_pieces.h"
#include "tensorflow/core/framework/op.h"

namespace hvds {
namespace {

constexpr int64_t kLeastSamples = 1024;

absl::Status sampled_shape(InferenceContext* c) {
  ShapeHandle kept, seed;
  std::vector<int64_t> ends;
  TF_RETURN_IF_ERROR(c->GetAttr("ends", &ends));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), ends.empty() ? 0 : 1, &kept));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(3), 0, &seed));
  return pieces_shape(c);
}

REGISTER_OP("HvdSparseFeedbackSampled")
    .Input("parts: T")
    .Input("residual: float")
    .Input("k: Tk")
    .Input("seed: Tseed")
    .Output("values: wire_dtype")
    .Output("indices: int32")
    .Output("residual_out: float")
    .Output("culprit: int32")
    .Attr("T: {float, half, bfloat16}")
    .Attr("Tk: {int32, int64}")
    .Attr("Tseed: {int32, int64}")
    .Attr("sample: float = 0.001")
    .Attr("ends: list(int) = []")
    .Attr("wire_dtype: {float, half, bfloat16} = DT_FLOAT")
    .SetShapeFn(sampled_shape);

class FeedbackSampledOp : public PiecesKernel {
 public:
  explicit FeedbackSampledOp(OpKernelConstruction* context) : PiecesKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("sample", &sample_));
    OP_REQUIRES(context, sample_ > 0 && sample_ <= 1,
                invalid_argument("Expected sample in (0, 1], got ", sample_, "."));
  }

  void Compute(OpKernelContext* context) override {
    std::vector<Piece> pieces;
    OP_REQUIRES_OK(context, read_pieces(context, context->input(2), &pieces));
    OP_REQUIRES_OK(context, check_number(context->input(3), "seed"));
    const int64_t seed = number_of(context->input(3));
    select_from(context, pieces, [&](const PieceCall& call) {
      const hvds_sampling sampling = sampling_of(call.piece, seed, static_cast<uint64_t>(call.number));
      return hvds_feedback_sampled(call.parts, call.dtype, call.count, call.stride, call.residual, call.piece.size,
                                   &sampling, call.wire, call.residual_out, call.culprit, call.sent, call.workspace,
                                   call.parallel);
    });
  }

 private:
  // Samples a share of the vector, with a minimum for short vectors; between half of k and twice k elements may be
  // sent. Each piece has its own sample.
  hvds_sampling sampling_of(const Piece& piece, int64_t seed, uint64_t number) const {
    const int64_t size = piece.size, kept = piece.kept;
    const auto share = static_cast<int64_t>(std::ceil(static_cast<double>(sample_) * static_cast<double>(size)));
    const int64_t samples = std::max<int64_t>(1, std::min(size, std::max(share, kLeastSamples)));
    const double of_sample = static_cast<double>(kept) * static_cast<double>(samples) / static_cast<double>(size);
    const int64_t rank = size == 0 ? 0 : std::max<int64_t>(1, static_cast<int64_t>(of_sample + 0.5));
    return {samples, rank, static_cast<uint64_t>(seed) + (number << 48), (kept + 1) / 2, 2 * kept, kept};
  }

  float sample_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("HvdSparseFeedbackSampled").Device(tensorflow::DEVICE_CPU), FeedbackSampledOp);

}  // namespace
}  // namespace hvds
