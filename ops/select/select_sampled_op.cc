// The TensorFlow operation of gradient dropping; the arithmetic is in select.h.
#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>
#include <vector>

#include "select.h"
#include "select_arguments.h"
#include "select_workspaces.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace hvds {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

constexpr int64_t kLeastSamples = 1024;

absl::Status sampled_shape(InferenceContext* c) {
  ShapeHandle parts, residual, kept, scalar;
  std::vector<int64_t> ends;
  TF_RETURN_IF_ERROR(c->GetAttr("ends", &ends));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &parts));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &residual));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), ends.empty() ? 0 : 1, &kept));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(3), 0, &scalar));
  DimensionHandle size;
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(parts, 1), c->Dim(residual, 0), &size));
  const DimensionHandle sent = c->UnknownDim();
  c->set_output(0, c->Vector(sent));
  c->set_output(1, c->Vector(sent));
  c->set_output(2, c->Vector(size));
  c->set_output(3, c->Scalar());
  return absl::OkStatus();
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

int64_t number_at(const Tensor& numbers, int64_t i) {
  return numbers.dtype() == tensorflow::DT_INT32 ? numbers.flat<int32_t>()(i) : numbers.flat<int64_t>()(i);
}

// Elements that have a threshold of their own.
struct Place {
  int64_t begin;
  int64_t size;
  int64_t kept;
};

// With `ends`, where pieces of the vector end, k [pieces] is that of each; without them there is one piece.
class FeedbackSampledOp : public OpKernel {
 public:
  explicit FeedbackSampledOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("sample", &sample_));
    OP_REQUIRES_OK(context, context->GetAttr("wire_dtype", &wire_));
    OP_REQUIRES(context, sample_ > 0 && sample_ <= 1,
                invalid_argument("Expected sample in (0, 1], got ", sample_, "."));
    OP_REQUIRES_OK(context, context->GetAttr("ends", &ends_));
    for (size_t i = 0; i < std::max<size_t>(1, ends_.size()); ++i) workspaces_.emplace_back();
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& parts = context->input(0);
    const Tensor& residual = context->input(1);
    OP_REQUIRES_OK(context, check_parts(parts, residual));
    const int64_t size = parts.dim_size(1);
    OP_REQUIRES_OK(context, check_size(size));
    OP_REQUIRES_OK(context, check_number(context->input(3), "seed"));
    std::vector<Place> places;
    OP_REQUIRES_OK(context, read_places(context->input(2), size, &places));
    Tensor* residual_out = nullptr;
    Tensor* culprit = nullptr;
    OP_REQUIRES_OK(context, residuals_.allocate(context, 2, TensorShape({size}), &residual_out));
    OP_REQUIRES_OK(context, context->allocate_output(3, TensorShape({}), &culprit));
    const DeviceThreads threads(context);
    std::deque<Lease> leases;  // what each piece sends waits in its workspace until it is known how much all send
    std::vector<int64_t> sent(places.size());
    culprit->scalar<int32_t>()() = 0;
    for (size_t i = 0; i < places.size(); ++i) {
      const Place& place = places[i];
      const hvds_sampling sampling = sampling_of(place, number_of(context->input(3)), i);
      const char* first = static_cast<const char*>(parts.data()) + place.begin * DataTypeSize(parts.dtype());
      int32_t blamed = 0;
      leases.emplace_back(workspaces_[i]);
      OP_REQUIRES_OK(context, told(hvds_feedback_sampled(
                                  first, dtype_of(parts.dtype()), parts.dim_size(0), size,
                                  static_cast<const float*>(residual.data()) + place.begin, place.size, &sampling,
                                  dtype_of(wire_), static_cast<float*>(residual_out->data()) + place.begin, &blamed,
                                  &sent[i], leases.back().get(), threads.get())));
      blame(blamed, &culprit->scalar<int32_t>()());
    }
    take(context, places, sent, leases);
  }

 private:
  absl::Status read_places(const Tensor& kept, int64_t size, std::vector<Place>* places) const {
    if (ends_.empty()) {
      TF_RETURN_IF_ERROR(check_number(kept, "k"));
      places->push_back({0, size, number_of(kept)});
      return check_kept(number_of(kept), size);
    }
    const auto pieces = static_cast<int64_t>(ends_.size());
    if (kept.shape() != TensorShape({pieces}) || ends_.back() != size) {
      return invalid_argument("Expected k [", pieces, "] and pieces that end at ", size, ", got shape ",
                              kept.shape().DebugString(), " and an end at ", ends_.back(), ".");
    }
    for (int64_t i = 0; i < pieces; ++i) {
      const int64_t begin = i == 0 ? 0 : ends_[i - 1];
      if (ends_[i] <= begin) return invalid_argument("Expected ends that ascend, got ", ends_[i], " after ", begin, ".");
      places->push_back({begin, ends_[i] - begin, number_at(kept, i)});
      TF_RETURN_IF_ERROR(check_kept(places->back().kept, places->back().size));
    }
    return absl::OkStatus();
  }

  // The lowest code of all pieces that have one: a part before their sum.
  static void blame(int32_t found, int32_t* culprit) {
    if (found != 0 && (*culprit == 0 || found < *culprit)) *culprit = found;
  }

  void take(OpKernelContext* context, const std::vector<Place>& places, const std::vector<int64_t>& sent,
            const std::deque<Lease>& leases) {
    const int64_t total = std::accumulate(sent.begin(), sent.end(), int64_t{0});
    Tensor* values = nullptr;
    Tensor* indices = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({total}), &values));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({total}), &indices));
    auto* to_values = static_cast<char*>(values->data());
    auto* to_indices = static_cast<int32_t*>(indices->data());
    for (size_t i = 0; i < places.size(); ++i) {
      const auto begin = static_cast<int32_t>(places[i].begin);
      hvds_take_sampled(leases[i].get(), dtype_of(wire_), to_values, to_indices);
      if (begin > 0) std::for_each_n(to_indices, sent[i], [begin](int32_t& index) { index += begin; });
      to_values += sent[i] * DataTypeSize(wire_);
      to_indices += sent[i];
    }
  }

  // A share of the vector, but of a short one enough to tell something; between half of k and twice k may be sent.
  // Each piece has another sample.
  hvds_sampling sampling_of(const Place& place, int64_t seed, uint64_t number) const {
    const int64_t size = place.size, kept = place.kept;
    const auto share = static_cast<int64_t>(std::ceil(static_cast<double>(sample_) * static_cast<double>(size)));
    const int64_t samples = std::max<int64_t>(1, std::min(size, std::max(share, kLeastSamples)));
    const double of_sample = static_cast<double>(kept) * static_cast<double>(samples) / static_cast<double>(size);
    const int64_t rank = size == 0 ? 0 : std::max<int64_t>(1, static_cast<int64_t>(of_sample + 0.5));
    return {samples, rank, static_cast<uint64_t>(seed) + (number << 48), (kept + 1) / 2, 2 * kept, kept};
  }

  std::vector<int64_t> ends_;
  std::deque<Workspaces> workspaces_;  // one for each piece, as large as it needs
  KeptOutputs residuals_;
  float sample_ = 0;
  tensorflow::DataType wire_;
};

REGISTER_KERNEL_BUILDER(Name("HvdSparseFeedbackSampled").Device(tensorflow::DEVICE_CPU), FeedbackSampledOp);

}  // namespace
}  // namespace hvds
