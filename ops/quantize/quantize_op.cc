// TensorFlow ops for QSGD; the arithmetic is in quantize.h.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "../common/op_support.h"
#include "quantize.h"
#include "tensorflow/core/framework/op.h"

namespace hvds {
namespace {

using tensorflow::DEVICE_CPU;
using tensorflow::TensorShapeUtils;

constexpr int64_t kMaxCount = std::numeric_limits<int32_t>::max();

template <typename Context>
absl::Status coding_of(Context* context, hvds_qsgd* coding) {
  TF_RETURN_IF_ERROR(context->GetAttr("bits", &coding->bits));
  TF_RETURN_IF_ERROR(context->GetAttr("bucket", &coding->bucket));
  if (coding->bits == 2 || coding->bits == 4 || coding->bits == 8) return absl::OkStatus();
  return invalid_argument("Expected 2, 4 or 8 bits, got ", coding->bits);
}

absl::Status quantize_shape(InferenceContext* c) {
  ShapeHandle values, seed;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &values));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &seed));
  hvds_qsgd coding;
  TF_RETURN_IF_ERROR(coding_of(c, &coding));
  const DimensionHandle count = c->Dim(values, 0);
  const bool known = c->ValueKnown(count);
  c->set_output(0, c->Vector(known ? hvds_quantize_bytes(c->Value(count), &coding) : InferenceContext::kUnknownDim));
  c->set_output(1, c->Vector(known ? hvds_quantize_buckets(c->Value(count), &coding) : InferenceContext::kUnknownDim));
  return absl::OkStatus();
}

absl::Status dequantize_shape(InferenceContext* c) {
  ShapeHandle ignored;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &ignored));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &ignored));
  DimensionHandle count;
  TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(2, &count));
  c->set_output(0, c->Vector(count));
  return absl::OkStatus();
}

REGISTER_OP("HvdQuantize")
    .Input("values: float")
    .Input("seed: int64")
    .Output("codes: uint8")
    .Output("scales: float")
    .Attr("bits: int = 4")
    .Attr("bucket: int >= 1 = 1024")
    .Attr("norm: {'max', 'l2'} = 'max'")
    .SetShapeFn(quantize_shape);

REGISTER_OP("HvdDequantize")
    .Input("codes: uint8")
    .Input("scales: float")
    .Input("count: int64")
    .Output("values: float")
    .Attr("bits: int = 4")
    .Attr("bucket: int >= 1 = 1024")
    .SetShapeFn(dequantize_shape);

// The error for a bucket that cannot be coded.
absl::Status refusal(const Tensor& values, const hvds_qsgd& coding, int64_t bucket) {
  const auto elements = values.flat<float>();
  const int64_t first = bucket * coding.bucket;
  const int64_t last = std::min<int64_t>(first + coding.bucket, elements.size());
  for (int64_t i = first; i < last; ++i) {
    if (!std::isfinite(elements(i))) {
      return invalid_argument("Expected finite values, got ", elements(i), " at position ", i, " of ", elements.size());
    }
  }
  return invalid_argument("Expected buckets whose L2 norm is below 3.4e38, got more in positions ", first, " to ",
                          last - 1, "; use norm='max'");
}

class QuantizeOp : public OpKernel {
 public:
  explicit QuantizeOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, coding_of(context, &coding_));
    std::string norm;
    OP_REQUIRES_OK(context, context->GetAttr("norm", &norm));
    norm_ = norm == "l2" ? HVDS_NORM_L2 : HVDS_NORM_MAX;
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& values = context->input(0);
    const Tensor& seed = context->input(1);
    OP_REQUIRES(context, values.dims() == 1 && seed.dims() == 0 && values.NumElements() <= kMaxCount,
                invalid_argument("Expected values [n] with n below 2^31 and a scalar seed, got shapes ",
                                 values.shape().DebugString(), " and ", seed.shape().DebugString()));
    const int64_t count = values.NumElements();
    Tensor* codes = nullptr;
    Tensor* scales = nullptr;
    OP_REQUIRES_OK(context, codes_.allocate(context, 0, TensorShape({hvds_quantize_bytes(count, &coding_)}), &codes));
    OP_REQUIRES_OK(context,
                   context->allocate_output(1, TensorShape({hvds_quantize_buckets(count, &coding_)}), &scales));
    const DeviceThreads threads(context);
    const int64_t faulty = hvds_quantize(values.flat<float>().data(), count, &coding_, norm_,
                                         static_cast<uint64_t>(seed.scalar<int64_t>()()), codes->flat<uint8_t>().data(),
                                         scales->flat<float>().data(), threads.get());
    OP_REQUIRES(context, faulty < 0, refusal(values, coding_, faulty));
  }

 private:
  hvds_qsgd coding_;
  hvds_norm norm_;
  KeptOutputs codes_;
};

class DequantizeOp : public OpKernel {
 public:
  explicit DequantizeOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, coding_of(context, &coding_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& codes = context->input(0);
    const Tensor& scales = context->input(1);
    int64_t count = 0;
    OP_REQUIRES_OK(context, check(codes, scales, context->input(2), &count));
    Tensor* values = nullptr;
    OP_REQUIRES_OK(context, values_.allocate(context, 0, TensorShape({count}), &values));
    const DeviceThreads threads(context);
    hvds_dequantize(codes.flat<uint8_t>().data(), scales.flat<float>().data(), count, &coding_,
                    values->flat<float>().data(), threads.get());
  }

 private:
  absl::Status check(const Tensor& codes, const Tensor& scales, const Tensor& number, int64_t* count) const {
    if (codes.dims() != 1 || scales.dims() != 1 || number.dims() != 0) {
      return invalid_argument("Expected codes [bytes], scales [buckets] and a scalar count, got shapes ",
                              codes.shape().DebugString(), ", ", scales.shape().DebugString(), " and ",
                              number.shape().DebugString());
    }
    *count = number.scalar<int64_t>()();
    if (*count < 0 || *count > kMaxCount) return invalid_argument("Expected a count in [0, 2^31), got ", *count);
    const int64_t bytes = hvds_quantize_bytes(*count, &coding_);
    const int64_t buckets = hvds_quantize_buckets(*count, &coding_);
    if (codes.NumElements() != bytes || scales.NumElements() != buckets) {
      return invalid_argument("Expected codes of ", bytes, " bytes and ", buckets, " scales for ", *count,
                              " values in ", coding_.bits, " bits and buckets of ", coding_.bucket, ", got ", codes.NumElements(),
                              " and ", scales.NumElements(), "; bits and bucket must be the sender's");
    }
    for (int64_t bucket = 0; bucket < buckets; ++bucket) {
      const float scale = scales.flat<float>()(bucket);
      if (std::isfinite(scale) && scale >= 0) continue;
      return invalid_argument("Expected finite scales of at least 0, got ", scale, " at position ", bucket);
    }
    return absl::OkStatus();
  }

  hvds_qsgd coding_;
  KeptOutputs values_;
};

REGISTER_KERNEL_BUILDER(Name("HvdQuantize").Device(DEVICE_CPU), QuantizeOp);
REGISTER_KERNEL_BUILDER(Name("HvdDequantize").Device(DEVICE_CPU), DequantizeOp);

}  // namespace
}  // namespace hvds
