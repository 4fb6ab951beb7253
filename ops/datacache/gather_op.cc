// A batch from the memory level as a TensorFlow op, so that a batch that is all in memory needs no Python.
#include <algorithm>
#include <vector>

#include "../common/op_support.h"
#include "lent_slabs.h"
#include "slab.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace datacache {
namespace {

using hvds::invalid_argument;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

constexpr size_t kKept = 8;  // batches: being gathered, waiting, and being trained on

absl::Status gather_shape(InferenceContext* c) {
  ShapeHandle any, spans, samples;
  DimensionHandle two;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &any));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &spans));
  TF_RETURN_IF_ERROR(c->WithValue(c->Dim(spans, 1), 2, &two));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 0, &any));
  tensorflow::PartialTensorShape shape;
  TF_RETURN_IF_ERROR(c->GetAttr("shape", &shape));
  TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(shape, &samples));
  const ShapeHandle batch = c->Vector(InferenceContext::kUnknownDim);
  TF_RETURN_IF_ERROR(c->Concatenate(batch, samples, &samples));
  c->set_output(0, samples);
  c->set_output(1, batch);
  c->set_output(2, c->Scalar());
  return absl::OkStatus();
}

// Batch `step` consists of the samples order[spans[step, 0] : spans[step, 1]]. `whole` says whether all of them were
// found; otherwise samples and labels must not be used. It is also false if one of the next `ahead` batches is
// incomplete, so that the caller requests it; step 0 checks all of these, and later steps only the one that is new.
REGISTER_OP("DatacacheGather")
    .Input("order: int64")
    .Input("spans: int64")
    .Input("step: int64")
    .Output("samples: dtype")
    .Output("labels: int64")
    .Output("whole: bool")
    .Attr("dtype: {bool, half, float, double, int8, int16, int32, int64, uint8, uint16, uint32, uint64}")
    .Attr("shape: shape")
    .Attr("slab: int")
    .Attr("ahead: int >= 0")
    .SetShapeFn(gather_shape);

// Borrows a slab for as long as this object lives.
class Borrowed {
 public:
  explicit Borrowed(int64_t number) : number_(number), there_(datacache_borrow(number, &slab_) == 1) {}
  ~Borrowed() {
    if (there_) datacache_give_back(number_, served_);
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

  explicit operator bool() const { return there_; }
  const datacache_slab* get() const { return &slab_; }
  void count(uint64_t samples) { served_ += samples; }

 private:
  datacache_slab slab_{};
  int64_t number_;
  bool there_;
  uint64_t served_ = 0;
};

class GatherOp : public OpKernel {
 public:
  explicit GatherOp(OpKernelConstruction* context) : OpKernel(context), kept_(kKept) {
    tensorflow::PartialTensorShape shape;
    OP_REQUIRES_OK(context, context->GetAttr("shape", &shape));
    OP_REQUIRES(context, shape.AsTensorShape(&shape_),
                invalid_argument("Expected a shape without unknown dimensions, got ", shape.DebugString()));
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &dtype_));
    OP_REQUIRES_OK(context, context->GetAttr("slab", &number_));
    OP_REQUIRES_OK(context, context->GetAttr("ahead", &ahead_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &order = context->input(0), &spans = context->input(1), &step = context->input(2);
    OP_REQUIRES(context, order.dims() == 1, invalid_argument("Expected order [n], got ", order.shape().DebugString()));
    OP_REQUIRES(context, spans.dims() == 2 && spans.dim_size(1) == 2,
                invalid_argument("Expected spans [steps, 2], got ", spans.shape().DebugString()));
    OP_REQUIRES(context, step.dims() == 0, invalid_argument("Expected one step, got ", step.shape().DebugString()));
    const int64_t now = step.scalar<int64_t>()(), steps = spans.dim_size(0);
    OP_REQUIRES(context, now >= 0 && now < steps,
                invalid_argument("Expected a step in [0, ", steps, "), got ", now));
    const int64_t first_ahead = now == 0 ? 1 : std::min(now + std::max<int64_t>(ahead_, 1), steps);
    const int64_t end = std::min(now + 1 + ahead_, steps);
    for (int64_t each = now; each < end; each = std::max(each + 1, first_ahead)) {
      OP_REQUIRES(context, is_span(order, spans, each),
                  invalid_argument("Expected spans inside the ", order.NumElements(), " samples of the order, got [",
                                   begin_of(spans, each), ", ", end_of(spans, each), ")"));
    }
    Borrowed slab(number_);
    OP_REQUIRES(context, static_cast<bool>(slab),
                absl::FailedPreconditionError("This memory level is closed: keep the DataCache open for as long as its "
                                              "datasets are read."));
    bool whole = true;
    for (int64_t each = now; whole && each < end; each = std::max(each + 1, first_ahead)) {
      whole = holds(slab.get(), order, begin_of(spans, each), end_of(spans, each));
    }
    gather(context, &slab, order, begin_of(spans, now), end_of(spans, now), whole);
  }

 private:
  static int64_t begin_of(const Tensor& spans, int64_t step) { return spans.matrix<int64_t>()(step, 0); }
  static int64_t end_of(const Tensor& spans, int64_t step) { return spans.matrix<int64_t>()(step, 1); }

  static bool is_span(const Tensor& order, const Tensor& spans, int64_t step) {
    const int64_t begin = begin_of(spans, step), end = end_of(spans, step);
    return 0 <= begin && begin <= end && end <= order.NumElements();
  }

  // Sample numbers as the slab represents them; a negative one is no sample of any slab.
  static const uint64_t* samples_from(const Tensor& order, int64_t begin) {
    return reinterpret_cast<const uint64_t*>(order.vec<int64_t>().data() + begin);
  }

  static bool holds(const datacache_slab* slab, const Tensor& order, int64_t begin, int64_t end) {
    std::vector<uint64_t> lengths(end - begin);
    datacache_slab_lengths(slab, samples_from(order, begin), lengths.size(), lengths.data());
    return std::find(lengths.begin(), lengths.end(), DATACACHE_NONE) == lengths.end();
  }

  void gather(OpKernelContext* context, Borrowed* slab, const Tensor& order, int64_t begin, int64_t end, bool held) {
    const int64_t count = held ? end - begin : 0;
    Tensor *samples = nullptr, *labels = nullptr, *whole = nullptr;
    OP_REQUIRES_OK(context, kept_.allocate(context, 0, batch_of(count), &samples));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({count}), &labels));
    OP_REQUIRES_OK(context, context->allocate_output(2, TensorShape({}), &whole));
    const uint64_t row_bytes = shape_.num_elements() * tensorflow::DataTypeSize(dtype_);
    std::vector<uint8_t> found(count);
    const uint64_t served =
        datacache_slab_gather(slab->get(), samples_from(order, begin), count, static_cast<uint8_t*>(samples->data()),
                              row_bytes, labels->vec<int64_t>().data(), found.data());
    whole->scalar<bool>()() = held && served == static_cast<uint64_t>(count);
    if (whole->scalar<bool>()()) slab->count(served);
  }

  TensorShape batch_of(int64_t count) const {
    TensorShape shape({count});
    shape.AppendShape(shape_);
    return shape;
  }

  TensorShape shape_;
  tensorflow::DataType dtype_;
  int64_t number_, ahead_;
  hvds::KeptOutputs kept_;
};

REGISTER_KERNEL_BUILDER(Name("DatacacheGather").Device(tensorflow::DEVICE_CPU), GatherOp);

}  // namespace
}  // namespace datacache
