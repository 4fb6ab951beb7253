// TensorFlow ops for values coded in one or two bits each; the arithmetic is in magnitudes.h.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "../common/op_support.h"
#include "magnitudes.h"
#include "tensorflow/core/framework/op.h"

namespace hvds {
namespace {

using tensorflow::DEVICE_CPU;

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
constexpr int64_t kWorthATask = 1 << 14;  // values of a row for which waking a thread pays off

DimensionHandle bytes_of(InferenceContext* c, DimensionHandle count, int bits) {
  return c->ValueKnown(count) ? c->MakeDim((c->Value(count) * bits + 7) / 8) : c->UnknownDim();
}

absl::Status one_bit_shape(InferenceContext* c) {
  ShapeHandle values, ignored;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &values));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &ignored));
  std::vector<int64_t> ends;
  TF_RETURN_IF_ERROR(c->GetAttr("ends", &ends));
  c->set_output(0, c->Vector(bytes_of(c, c->Dim(values, 0), 1)));
  c->set_output(1, c->Vector(ends.empty() ? c->MakeDim(1) : c->UnknownDim()));
  return absl::OkStatus();
}

absl::Status two_bits_shape(InferenceContext* c) {
  ShapeHandle rows;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &rows));
  c->set_output(0, c->Matrix(c->Dim(rows, 0), bytes_of(c, c->Dim(rows, 1), 2)));
  c->set_output(1, c->Matrix(c->Dim(rows, 0), c->MakeDim(HVDS_TWO_BITS_SCALES)));
  return absl::OkStatus();
}

absl::Status from_two_bits_shape(InferenceContext* c) {
  ShapeHandle codes;
  DimensionHandle count;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &codes));
  TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(2, &count));
  c->set_output(0, c->Matrix(c->Dim(codes, 0), count));
  return absl::OkStatus();
}

absl::Status decoded_shape(InferenceContext* c, int count_input) {
  DimensionHandle count;
  TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(count_input, &count));
  c->set_output(0, c->Vector(count));
  return absl::OkStatus();
}

REGISTER_OP("HvdQuantizeOneBit")
    .Input("values: float")
    .Input("indices: int32")
    .Output("codes: uint8")
    .Output("scales: float")
    .Attr("magnitude: {'least', 'mean'}")
    .Attr("ends: list(int) = []")
    .Attr("starts: list(int) = []")
    .Attr("columns: list(int) = []")
    .SetShapeFn(one_bit_shape);

REGISTER_OP("HvdDequantizeOneBit")
    .Input("codes: uint8")
    .Input("scales: float")
    .Input("indices: int32")
    .Input("count: int64")
    .Output("values: float")
    .Attr("ends: list(int) = []")
    .Attr("starts: list(int) = []")
    .Attr("columns: list(int) = []")
    .SetShapeFn([](InferenceContext* c) { return decoded_shape(c, 3); });

REGISTER_OP("HvdQuantizeTwoBits")
    .Input("values: float")
    .Output("codes: uint8")
    .Output("scales: float")
    .SetShapeFn(two_bits_shape);

REGISTER_OP("HvdDequantizeTwoBits")
    .Input("codes: uint8")
    .Input("scales: float")
    .Input("count: int64")
    .Output("values: float")
    .SetShapeFn(from_two_bits_shape);

// The matrices of a vector, as attributes; none if all of it is one column.
class Matrices {
 public:
  absl::Status read(OpKernelConstruction* context) {
    TF_RETURN_IF_ERROR(context->GetAttr("ends", &ends_));
    TF_RETURN_IF_ERROR(context->GetAttr("starts", &starts_));
    TF_RETURN_IF_ERROR(context->GetAttr("columns", &columns_));
    if (starts_.size() != ends_.size() || columns_.size() != ends_.size()) {
      return invalid_argument("Expected ends, starts and columns of as many matrices, got ", ends_.size(), ", ",
                              starts_.size(), " and ", columns_.size());
    }
    for (size_t i = 0; i < ends_.size(); ++i) {
      const int64_t begin = i == 0 ? 0 : ends_[i - 1];
      if (ends_[i] < begin || ends_[i] > kMost || starts_[i] < 0 || columns_[i] < 1) {
        return invalid_argument("Expected ends that ascend below 2^31, starts from 0 on and columns of at least 1, got ",
                                ends_[i], " after ", begin, ", ", starts_[i], " and ", columns_[i], " of matrix ", i);
      }
    }
    const hvds_matrices all = view();
    if (hvds_columns(&all) <= kMost) return absl::OkStatus();
    return invalid_argument("Expected fewer than 2^31 columns, got ", hvds_columns(&all));
  }

  bool empty() const { return ends_.empty(); }

  hvds_matrices view() const {
    return {static_cast<int64_t>(ends_.size()), ends_.data(), starts_.data(), columns_.data()};
  }

  // The column of each of `count` values, in `numbers`, and the number of columns. Without matrices all values are in
  // one column, and nothing is numbered.
  absl::Status number(OpKernelContext* context, const Tensor& indices, int64_t count, Tensor* numbers,
                      int64_t* used) const {
    *used = 1;
    if (empty()) return absl::OkStatus();
    if (indices.dims() != 1 || indices.NumElements() != count) {
      return invalid_argument("Expected indices [", count, "], one for each value, got shape ",
                              indices.shape().DebugString());
    }
    const hvds_matrices all = view();
    Tensor scratch;
    TF_RETURN_IF_ERROR(context->allocate_temp(tensorflow::DT_INT32, TensorShape({count}), numbers));
    TF_RETURN_IF_ERROR(context->allocate_temp(tensorflow::DT_INT32, TensorShape({hvds_columns(&all)}), &scratch));
    const int32_t* places = indices.flat<int32_t>().data();
    *used = hvds_number_columns(places, count, &all, numbers->flat<int32_t>().data(), scratch.flat<int32_t>().data());
    if (*used >= 0) return absl::OkStatus();
    const int64_t position = -1 - *used;
    return invalid_argument("Expected indices in [0, ", ends_.back(), "), got ", places[position], " at position ",
                            position);
  }

 private:
  std::vector<int64_t> ends_, starts_, columns_;
};

absl::Status check_values(const Tensor& values) {
  if (values.dims() == 1 && values.NumElements() <= kMost) return absl::OkStatus();
  return invalid_argument("Expected values [n] with n below 2^31, got shape ", values.shape().DebugString());
}

absl::Status check_finite(const Tensor& values, int64_t faulty) {
  if (faulty < 0) return absl::OkStatus();
  return invalid_argument("Expected finite values, got ", values.flat<float>()(faulty), " at position ", faulty, " of ",
                          values.NumElements());
}

absl::Status read_count(const Tensor& number, int64_t* count) {
  if (number.dims() != 0) {
    return invalid_argument("Expected a scalar count, got shape ", number.shape().DebugString());
  }
  *count = number.scalar<int64_t>()();
  if (*count >= 0 && *count <= kMost) return absl::OkStatus();
  return invalid_argument("Expected a count in [0, 2^31), got ", *count);
}

absl::Status check_scales(const Tensor& scales) {
  for (int64_t i = 0; i < scales.NumElements(); ++i) {
    const float scale = scales.flat<float>()(i);
    if (std::isfinite(scale) && scale >= 0) continue;
    return invalid_argument("Expected finite scales of at least 0, got ", scale, " at position ", i);
  }
  return absl::OkStatus();
}

absl::Status check_codes(const Tensor& codes, const Tensor& scales, int64_t count, int64_t bits, int64_t scale_count) {
  const int64_t bytes = (count * bits + 7) / 8;
  if (codes.dims() != 1 || scales.dims() != 1 || codes.NumElements() != bytes || scales.NumElements() != scale_count) {
    return invalid_argument("Expected codes [", bytes, "] and scales [", scale_count, "] for ", count, " values, got ",
                            codes.shape().DebugString(), " and ", scales.shape().DebugString(),
                            "; the quantizer must be the sender's");
  }
  return check_scales(scales);
}

const int32_t* columns_in(const Matrices& matrices, const Tensor& numbers) {
  return matrices.empty() ? nullptr : numbers.flat<int32_t>().data();
}

class QuantizeOneBitOp : public OpKernel {
 public:
  explicit QuantizeOneBitOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, matrices_.read(context));
    std::string magnitude;
    OP_REQUIRES_OK(context, context->GetAttr("magnitude", &magnitude));
    magnitude_ = magnitude == "mean" ? HVDS_MAGNITUDE_MEAN : HVDS_MAGNITUDE_LEAST;
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& values = context->input(0);
    OP_REQUIRES_OK(context, check_values(values));
    const int64_t count = values.NumElements();
    int64_t used = 0;
    Tensor numbers, scratch;
    OP_REQUIRES_OK(context, matrices_.number(context, context->input(1), count, &numbers, &used));
    OP_REQUIRES_OK(context, context->allocate_temp(tensorflow::DT_DOUBLE, TensorShape({2 * used}), &scratch));
    Tensor* codes = nullptr;
    Tensor* scales = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({(count + 7) / 8}), &codes));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({used}), &scales));
    const int64_t faulty = hvds_one_bit(values.flat<float>().data(), columns_in(matrices_, numbers), count, magnitude_,
                                        used, codes->flat<uint8_t>().data(), scales->flat<float>().data(),
                                        scratch.flat<double>().data());
    OP_REQUIRES_OK(context, check_finite(values, faulty));
  }

 private:
  Matrices matrices_;
  hvds_magnitude magnitude_;
};

class DequantizeOneBitOp : public OpKernel {
 public:
  explicit DequantizeOneBitOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, matrices_.read(context));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& codes = context->input(0);
    const Tensor& scales = context->input(1);
    int64_t count = 0, used = 0;
    Tensor numbers;
    OP_REQUIRES_OK(context, read_count(context->input(3), &count));
    OP_REQUIRES_OK(context, matrices_.number(context, context->input(2), count, &numbers, &used));
    OP_REQUIRES_OK(context, check_codes(codes, scales, count, 1, used));
    Tensor* values = nullptr;
    OP_REQUIRES_OK(context, values_.allocate(context, 0, TensorShape({count}), &values));
    hvds_from_one_bit(codes.flat<uint8_t>().data(), scales.flat<float>().data(), columns_in(matrices_, numbers), count,
                      values->flat<float>().data());
  }

 private:
  Matrices matrices_;
  KeptOutputs values_;
};

// Values [rows, n], each row coded by itself.
class QuantizeTwoBitsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& values = context->input(0);
    OP_REQUIRES(context, values.dims() == 2 && values.NumElements() <= kMost,
                invalid_argument("Expected values [rows, n], fewer than 2^31, got shape ", values.shape().DebugString()));
    const int64_t rows = values.dim_size(0), count = values.dim_size(1), bytes = (count + 3) / 4;
    Tensor* codes = nullptr;
    Tensor* scales = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({rows, bytes}), &codes));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({rows, HVDS_TWO_BITS_SCALES}), &scales));
    const float* from = values.flat<float>().data();
    uint8_t* to = codes->flat<uint8_t>().data();
    float* of_rows = scales->flat<float>().data();
    std::vector<int64_t> faulty(rows, -1);
    const DeviceThreads threads(context);
    parallel_for(count > kWorthATask ? threads.get() : nullptr, static_cast<int>(rows), [&](int row) {
      faulty[row] = hvds_two_bits(from + row * count, count, to + row * bytes, of_rows + row * HVDS_TWO_BITS_SCALES);
    });
    for (int64_t row = 0; row < rows; ++row) {
      OP_REQUIRES_OK(context, check_finite(values, faulty[row] < 0 ? -1 : row * count + faulty[row]));
    }
  }
};

// Codes [rows, bytes] and scales [rows, 4] of n values in each row.
class DequantizeTwoBitsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& codes = context->input(0);
    const Tensor& scales = context->input(1);
    int64_t count = 0;
    OP_REQUIRES_OK(context, read_count(context->input(2), &count));
    OP_REQUIRES_OK(context, check(codes, scales, count));
    const int64_t rows = codes.dim_size(0), bytes = codes.dim_size(1);
    Tensor* values = nullptr;
    OP_REQUIRES_OK(context, values_.allocate(context, 0, TensorShape({rows, count}), &values));
    const uint8_t* from = codes.flat<uint8_t>().data();
    const float* of_rows = scales.flat<float>().data();
    float* to = values->flat<float>().data();
    const DeviceThreads threads(context);
    parallel_for(count > kWorthATask ? threads.get() : nullptr, static_cast<int>(rows), [&](int row) {
      hvds_from_two_bits(from + row * bytes, of_rows + row * HVDS_TWO_BITS_SCALES, count, to + row * count);
    });
  }

 private:
  static absl::Status check(const Tensor& codes, const Tensor& scales, int64_t count) {
    if (codes.dims() != 2 || scales.dims() != 2 || codes.dim_size(0) != scales.dim_size(0)) {
      return invalid_argument("Expected codes [rows, bytes] and scales [rows, 4], got shapes ",
                              codes.shape().DebugString(), " and ", scales.shape().DebugString());
    }
    const int64_t rows = codes.dim_size(0), bytes = (count + 3) / 4;
    if (codes.dim_size(1) != bytes || scales.dim_size(1) != HVDS_TWO_BITS_SCALES || rows * count > kMost) {
      return invalid_argument("Expected codes [", bytes, "] and scales [", HVDS_TWO_BITS_SCALES, "] for ", count,
                              " values in each of ", rows, " rows, got ", codes.shape().DebugString(), " and ",
                              scales.shape().DebugString(), "; the quantizer must be the sender's");
    }
    return check_scales(scales);
  }

  KeptOutputs values_;
};

REGISTER_KERNEL_BUILDER(Name("HvdQuantizeOneBit").Device(DEVICE_CPU), QuantizeOneBitOp);
REGISTER_KERNEL_BUILDER(Name("HvdDequantizeOneBit").Device(DEVICE_CPU), DequantizeOneBitOp);
REGISTER_KERNEL_BUILDER(Name("HvdQuantizeTwoBits").Device(DEVICE_CPU), QuantizeTwoBitsOp);
REGISTER_KERNEL_BUILDER(Name("HvdDequantizeTwoBits").Device(DEVICE_CPU), DequantizeTwoBitsOp);

}  // namespace
}  // namespace hvds
