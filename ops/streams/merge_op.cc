// TensorFlow ops on sparse streams; the arithmetic is in merge.h.
#include <algorithm>
#include <string>

#include "merge.h"
#include "merge_messages_op.h"
#include "../common/op_support.h"
#include "tensorflow/core/framework/op.h"

namespace hvds {
namespace {

using tensorflow::DEVICE_CPU;
using tensorflow::DT_INT32;
using tensorflow::TensorShapeUtils;

absl::Status message_shape(InferenceContext* c) {
  c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
  return absl::OkStatus();
}

absl::Status split_shape(InferenceContext* c) {
  ShapeHandle dense_above;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(3), 1, &dense_above));
  c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
  c->set_output(1, dense_above);
  return absl::OkStatus();
}

absl::Status dense_shape(InferenceContext* c) {
  DimensionHandle size, width;
  TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(1, &size));
  TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(2, &width));
  c->set_output(0, c->Matrix(size, width));
  return absl::OkStatus();
}

absl::Status slices_shape(InferenceContext* c) {
  DimensionHandle width;
  TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(2, &width));
  const DimensionHandle count = c->UnknownDim();
  c->set_output(0, c->Matrix(count, width));
  c->set_output(1, c->Vector(count));
  return absl::OkStatus();
}

REGISTER_OP("HvdStreamPack")
    .Input("values: T")
    .Input("indices: int32")
    .Input("size: int64")
    .Input("dense_above: int64")
    .Output("message: int32")
    .Attr("T: {half, float, double}")
    .Attr("combine: {'sum', 'max', 'min', 'product'} = 'sum'")
    .SetShapeFn(message_shape);

REGISTER_OP("HvdStreamSplit")
    .Input("message: int32")
    .Input("size: int64")
    .Input("width: int64")
    .Input("dense_above: int64")
    .Output("messages: int32")
    .Output("lengths: int32")
    .Attr("T: {half, float, double}")
    .Attr("combine: {'sum', 'max', 'min', 'product'} = 'sum'")
    .SetShapeFn(split_shape);

REGISTER_OP("HvdStreamReduce")
    .Input("messages: int32")
    .Input("size: int64")
    .Input("width: int64")
    .Input("dense_above: int64")
    .Output("message: int32")
    .Attr("T: {half, float, double}")
    .Attr("combine: {'sum', 'max', 'min', 'product'} = 'sum'")
    .Attr("before: int >= 0 = 0")
    .SetShapeFn(message_shape);

REGISTER_OP("HvdStreamConcat")
    .Input("messages: int32")
    .Input("size: int64")
    .Input("width: int64")
    .Input("dense_above: int64")
    .Output("message: int32")
    .Attr("parts: int >= 1")
    .Attr("T: {half, float, double}")
    .Attr("combine: {'sum', 'max', 'min', 'product'} = 'sum'")
    .SetShapeFn(message_shape);

REGISTER_OP("HvdStreamDense")
    .Input("message: int32")
    .Input("size: int64")
    .Input("width: int64")
    .Input("divisor: double")
    .Output("values: T")
    .Attr("T: {half, float, double}")
    .Attr("combine: {'sum', 'max', 'min', 'product'} = 'sum'")
    .SetShapeFn(dense_shape);

REGISTER_OP("HvdStreamSlices")
    .Input("message: int32")
    .Input("size: int64")
    .Input("width: int64")
    .Output("values: T")
    .Output("indices: int32")
    .Attr("T: {half, float, double}")
    .SetShapeFn(slices_shape);

hvds_combine combine_of(const std::string& name) {
  if (name == "max") return HVDS_MAX;
  if (name == "min") return HVDS_MIN;
  return name == "product" ? HVDS_PRODUCT : HVDS_SUM;
}

// Sets the first output to the first `words` of a message that had room for more.
absl::Status set_message(OpKernelContext* context, const Tensor& room, int64_t words) {
  if (words < 0) return absl::ResourceExhaustedError("There is no memory to merge sparse streams");
  context->set_output(0, room.Slice(0, words));
  return absl::OkStatus();
}

// What all of these ops have: the type of the elements, and the operation that combines them.
class StreamOp : public OpKernel {
 public:
  explicit StreamOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("T", &type_));
    std::string combine = "sum";
    if (context->HasAttr("combine")) OP_REQUIRES_OK(context, context->GetAttr("combine", &combine));
    combine_ = combine_of(combine);
  }

  void Compute(OpKernelContext* context) final { OP_REQUIRES_OK(context, compute(context)); }

 protected:
  virtual absl::Status compute(OpKernelContext* context) = 0;

  tensorflow::DataType type() const { return type_; }
  hvds_combine combine() const { return combine_; }

 private:
  tensorflow::DataType type_;
  hvds_combine combine_;
};

class PackOp final : public StreamOp {
 public:
  using StreamOp::StreamOp;

 protected:
  absl::Status compute(OpKernelContext* context) override {
    const Tensor& values = context->input(0);
    const Tensor& indices = context->input(1);
    if (values.dims() != 2 || indices.dims() != 1 || values.dim_size(0) != indices.dim_size(0)) {
      return invalid_argument("Expected values [k, width] and indices [k], got shapes ", values.shape().DebugString(),
                              " and ", indices.shape().DebugString());
    }
    TF_RETURN_IF_ERROR(check_scalar(context, 2, "size"));
    TF_RETURN_IF_ERROR(check_scalar(context, 3, "dense_above"));
    const hvds_rows rows{context->input(2).scalar<int64_t>()(), values.dim_size(1), dtype_of(type())};
    TF_RETURN_IF_ERROR(check_rows(rows));
    const int32_t* entries = indices.flat<int32_t>().data();
    const int64_t count = indices.NumElements();
    const int64_t outside = hvds_stream_outside(entries, count, rows.size);
    if (outside >= 0) {
      return invalid_argument("Expected indices in [0, ", rows.size, "), got ", entries[outside], " at position ",
                              outside, " of ", count);
    }
    const int64_t dense_above = context->input(3).scalar<int64_t>()();
    Tensor room;
    TF_RETURN_IF_ERROR(context->allocate_temp(
        DT_INT32, TensorShape({hvds_stream_room(std::min(count, rows.size), &rows, dense_above)}), &room));
    return set_message(context, room,
                       hvds_stream_pack(values.data(), entries, count, &rows, combine(), dense_above,
                                        room.flat<int32_t>().data()));
  }
};

class SplitOp final : public StreamOp {
 public:
  using StreamOp::StreamOp;

 protected:
  absl::Status compute(OpKernelContext* context) override {
    hvds_rows rows;
    TF_RETURN_IF_ERROR(rows_of(context, type(), &rows));
    Messages messages;
    TF_RETURN_IF_ERROR(read_one(context, rows, &messages));
    const Tensor& dense_above = context->input(3);
    if (!TensorShapeUtils::IsVector(dense_above.shape()) || dense_above.NumElements() < 1) {
      return invalid_argument("Expected dense_above [parts] of at least one part, got shape ",
                              dense_above.shape().DebugString());
    }
    const int64_t parts = dense_above.NumElements();
    const int64_t* above = dense_above.flat<int64_t>().data();
    Tensor* lengths = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(1, TensorShape({parts}), &lengths));
    const int64_t words =
        hvds_stream_split_words(messages.streams(), &rows, parts, above, lengths->flat<int32_t>().data());
    Tensor* pieces = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(0, TensorShape({words}), &pieces));
    hvds_stream_split(messages.streams(), &rows, combine(), parts, above, pieces->flat<int32_t>().data());
    return absl::OkStatus();
  }
};

class ReduceOp final : public StreamOp {
 public:
  explicit ReduceOp(OpKernelConstruction* context) : StreamOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("before", &before_));
    OP_REQUIRES(context, before_ % 2 == 0,
                invalid_argument("Expected an even number of words before each message, got ", before_));
  }

 protected:
  absl::Status compute(OpKernelContext* context) override {
    hvds_rows rows;
    TF_RETURN_IF_ERROR(rows_of(context, type(), &rows));
    TF_RETURN_IF_ERROR(check_scalar(context, 3, "dense_above"));
    Messages messages;
    TF_RETURN_IF_ERROR(messages.open(context, context->input(0)));
    do {
      TF_RETURN_IF_ERROR(messages.skip(before_));
      TF_RETURN_IF_ERROR(messages.read(rows));
    } while (!messages.at_end());
    const int64_t dense_above = context->input(3).scalar<int64_t>()();
    Tensor room;
    TF_RETURN_IF_ERROR(context->allocate_temp(
        DT_INT32,
        TensorShape({hvds_stream_reduce_room(messages.streams(), messages.number(), &rows, dense_above)}), &room));
    const DeviceThreads threads(context);
    return set_message(context, room,
                       hvds_stream_reduce(messages.streams(), messages.number(), &rows, combine(), dense_above,
                                          room.flat<int32_t>().data(), threads.get()));
  }

 private:
  int before_ = 0;
};

class ConcatOp final : public StreamOp {
 public:
  explicit ConcatOp(OpKernelConstruction* context) : StreamOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("parts", &parts_));
  }

 protected:
  absl::Status compute(OpKernelContext* context) override {
    hvds_rows rows;
    TF_RETURN_IF_ERROR(rows_of(context, type(), &rows));
    TF_RETURN_IF_ERROR(check_scalar(context, 3, "dense_above"));
    Messages messages;
    TF_RETURN_IF_ERROR(messages.open(context, context->input(0)));
    for (int64_t part = 0; part < parts_; ++part) {
      const hvds_rows piece = hvds_stream_piece(&rows, part, parts_);
      TF_RETURN_IF_ERROR(messages.read(piece));
    }
    TF_RETURN_IF_ERROR(messages.close());
    const int64_t dense_above = context->input(3).scalar<int64_t>()();
    const int64_t words = hvds_stream_concat_words(messages.streams(), parts_, &rows, dense_above);
    Tensor* message = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(0, TensorShape({words}), &message));
    hvds_stream_concat(messages.streams(), parts_, &rows, combine(), dense_above, message->flat<int32_t>().data());
    return absl::OkStatus();
  }

 private:
  int64_t parts_;
};

class DenseOp final : public StreamOp {
 public:
  using StreamOp::StreamOp;

 protected:
  absl::Status compute(OpKernelContext* context) override {
    hvds_rows rows;
    TF_RETURN_IF_ERROR(rows_of(context, type(), &rows));
    TF_RETURN_IF_ERROR(check_scalar(context, 3, "divisor"));
    Messages messages;
    TF_RETURN_IF_ERROR(read_one(context, rows, &messages));
    Tensor* values = nullptr;
    TF_RETURN_IF_ERROR(values_.allocate(context, 0, TensorShape({rows.size, rows.width}), &values));
    const DeviceThreads threads(context);
    hvds_stream_dense(messages.streams(), &rows, combine(), context->input(3).scalar<double>()(), values->data(),
                      threads.get());
    return absl::OkStatus();
  }

 private:
  KeptOutputs values_;
};

class SlicesOp final : public StreamOp {
 public:
  using StreamOp::StreamOp;

 protected:
  absl::Status compute(OpKernelContext* context) override {
    hvds_rows rows;
    TF_RETURN_IF_ERROR(rows_of(context, type(), &rows));
    Messages messages;
    TF_RETURN_IF_ERROR(read_one(context, rows, &messages));
    const int64_t count = messages.streams()->count;
    Tensor* values = nullptr;
    Tensor* indices = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(0, TensorShape({count, rows.width}), &values));
    TF_RETURN_IF_ERROR(context->allocate_output(1, TensorShape({count}), &indices));
    hvds_stream_slices(messages.streams(), &rows, values->data(), indices->flat<int32_t>().data());
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("HvdStreamPack").Device(DEVICE_CPU), PackOp);
REGISTER_KERNEL_BUILDER(Name("HvdStreamSplit").Device(DEVICE_CPU), SplitOp);
REGISTER_KERNEL_BUILDER(Name("HvdStreamReduce").Device(DEVICE_CPU), ReduceOp);
REGISTER_KERNEL_BUILDER(Name("HvdStreamConcat").Device(DEVICE_CPU), ConcatOp);
REGISTER_KERNEL_BUILDER(Name("HvdStreamDense").Device(DEVICE_CPU), DenseOp);
REGISTER_KERNEL_BUILDER(Name("HvdStreamSlices").Device(DEVICE_CPU), SlicesOp);

}  // namespace
}  // namespace hvds
