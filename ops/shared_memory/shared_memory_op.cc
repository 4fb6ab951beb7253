// The exchange through shared memory as a TensorFlow op; see shared_memory.h.
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "../common/op_support.h"
#include "../common/waiters.h"
#include "shared_memory.h"
#include "tensorflow/core/framework/op.h"

namespace hvds {
namespace {

using tensorflow::AsyncOpKernel;

absl::Status exchange_shape(InferenceContext* c) {
  ShapeHandle vector;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &vector));
  int64_t received = 0;
  TF_RETURN_IF_ERROR(c->GetAttr("received_size", &received));
  c->set_output(0, c->Vector(received));
  return absl::OkStatus();
}

// Not stateful: tf.function runs stateful ops one after another. The caller ensures that the input is not a constant,
// as for Horovod's ops.
REGISTER_OP("HvdSparseSharedExchange")
    .Input("vector: T")
    .Output("received: T")
    .Attr("T: {float, half, bfloat16, double, int32, int64, uint8, int8}")
    .Attr("group: int")
    .Attr("channel: string")
    .Attr("starts: list(int)")
    .Attr("lengths: list(int)")
    .Attr("offsets: list(int)")
    .Attr("received_size: int >= 0")
    .SetShapeFn(exchange_shape);

absl::Status ragged_exchange_shape(InferenceContext* c) {
  ShapeHandle vector, splits;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &vector));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &splits));
  c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
  c->set_output(1, splits);
  return absl::OkStatus();
}

REGISTER_OP("HvdSparseSharedExchangeRagged")
    .Input("vector: T")
    .Input("splits: int32")
    .Output("received: T")
    .Output("lengths: int32")
    .Attr("T: {float, half, bfloat16, double, int32, int64, uint8, int8}")
    .Attr("group: int")
    .Attr("channel: string")
    .Attr("me: int >= 0")
    .Attr("width: int >= 0")
    .SetShapeFn(ragged_exchange_shape);

// An inbox as a tensor's memory.
class InboxBuffer : public tensorflow::TensorBuffer {
 public:
  InboxBuffer(hvds_received* received, size_t bytes)
      : TensorBuffer(hvds_received_data(received)), received_(received), bytes_(bytes) {}
  ~InboxBuffer() override { hvds_received_release(received_); }

  size_t size() const override { return bytes_; }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tensorflow::AllocationDescription* description) const override {
    description->set_requested_bytes(static_cast<int64_t>(bytes_));
    description->set_allocator_name("hvd_sparse shared memory");
  }
  bool GetAllocatedBytes(size_t* bytes) const override {
    *bytes = bytes_;
    return true;
  }

 private:
  hvds_received* received_;
  size_t bytes_;
};

class SharedExchangeOp : public AsyncOpKernel {
 public:
  explicit SharedExchangeOp(OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("group", &group_));
    OP_REQUIRES_OK(context, context->GetAttr("channel", &channel_));
    OP_REQUIRES_OK(context, context->GetAttr("starts", &starts_));
    OP_REQUIRES_OK(context, context->GetAttr("lengths", &lengths_));
    OP_REQUIRES_OK(context, context->GetAttr("offsets", &offsets_));
    OP_REQUIRES_OK(context, context->GetAttr("received_size", &received_size_));
    const size_t members = starts_.size();
    OP_REQUIRES(context,
                members >= 1 && members <= HVDS_MAX_NEIGHBOURS && lengths_.size() == members &&
                    offsets_.size() == members,
                invalid_argument("Expected a start, a length and an offset for each of 1 to ", HVDS_MAX_NEIGHBOURS,
                                 " ranks, got ", members, ", ", lengths_.size(), " and ", offsets_.size()));
    for (size_t member = 0; member < members; ++member) {
      OP_REQUIRES(context, starts_[member] >= 0 && lengths_[member] >= 0 && offsets_[member] >= 0,
                  invalid_argument("Expected no negative start, length or offset, got ", starts_[member], ", ",
                                   lengths_[member], " and ", offsets_[member], " for local rank ", member));
    }
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const Tensor& vector = context->input(0);
    OP_REQUIRES_ASYNC(context, vector.dims() == 1,
                      invalid_argument("Expected a vector, got shape ", vector.shape().DebugString()), done);
    for (size_t member = 0; member < starts_.size(); ++member) {
      OP_REQUIRES_ASYNC(context, starts_[member] + lengths_[member] <= vector.NumElements(),
                        invalid_argument("Expected a vector of at least ", starts_[member] + lengths_[member],
                                         " elements, as so many are to be sent, got ", vector.NumElements()),
                        done);
    }
    Waiters::instance().run([this, context, done = std::move(done)] {
      context->SetStatus(exchange(context));
      done();
    });
  }

 private:
  absl::Status exchange(OpKernelContext* context) const {
    const Tensor& vector = context->input(0);
    const int64_t item = tensorflow::DataTypeSize(vector.dtype());
    std::vector<const void*> pieces;
    std::vector<int64_t> bytes, offsets;
    for (size_t member = 0; member < starts_.size(); ++member) {
      pieces.push_back(static_cast<const char*>(vector.data()) + starts_[member] * item);
      bytes.push_back(lengths_[member] * item);
      offsets.push_back(offsets_[member] * item);
    }
    char message[256];
    hvds_received* received = hvds_exchange(group_, channel_.c_str(), pieces.data(), bytes.data(), offsets.data(),
                                            received_size_ * item, message);
    if (received == nullptr) {
      return absl::AbortedError(absl::StrCat("The exchange ", channel_, " in shared memory failed: ", message));
    }
    auto* buffer = new InboxBuffer(received, received_size_ * item);
    context->set_output(0, Tensor(vector.dtype(), TensorShape({received_size_}), buffer));
    buffer->Unref();
    return absl::OkStatus();
  }

  int64_t group_;
  std::string channel_;
  std::vector<int64_t> starts_, lengths_, offsets_;
  int64_t received_size_;
};

// Two exchanges: first the numbers of rows that each member sends to each, then the rows.
class SharedExchangeRaggedOp : public AsyncOpKernel {
 public:
  explicit SharedExchangeRaggedOp(OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("group", &group_));
    OP_REQUIRES_OK(context, context->GetAttr("channel", &channel_));
    OP_REQUIRES_OK(context, context->GetAttr("me", &me_));
    OP_REQUIRES_OK(context, context->GetAttr("width", &width_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const Tensor& vector = context->input(0);
    const Tensor& splits = context->input(1);
    const int64_t members = splits.NumElements();
    OP_REQUIRES_ASYNC(context, vector.dims() == 1 && splits.dims() == 1,
                      invalid_argument("Expected two vectors, got shapes ", vector.shape().DebugString(), " and ",
                                       splits.shape().DebugString()),
                      done);
    OP_REQUIRES_ASYNC(context, members > me_ && members <= HVDS_MAX_NEIGHBOURS,
                      invalid_argument("Expected a split for each of ", me_ + 1, " to ", HVDS_MAX_NEIGHBOURS,
                                       " ranks, got ", members),
                      done);
    int64_t rows = 0;
    for (int64_t member = 0; member < members; ++member) {
      const int32_t split = splits.vec<int32_t>()(member);
      OP_REQUIRES_ASYNC(context, split >= 0, invalid_argument("Expected no negative split, got ", split), done);
      rows += split;
    }
    OP_REQUIRES_ASYNC(context, rows * width_ == vector.NumElements(),
                      invalid_argument("Expected splits that add up to the ", vector.NumElements(),
                                       " elements that are sent, got ", rows, " rows of ", width_),
                      done);
    Waiters::instance().run([this, context, done = std::move(done)] {
      context->SetStatus(exchange(context));
      done();
    });
  }

 private:
  // The splits of all members: [sender][receiver], in rows.
  absl::Status tell_splits(const int32_t* splits, int64_t members, std::vector<int32_t>* matrix) const {
    const int64_t row = members * sizeof(int32_t);
    const std::vector<const void*> pieces(members, splits);
    const std::vector<int64_t> bytes(members, row), offsets(members, me_ * row);
    char message[256];
    hvds_received* received = hvds_exchange(group_, (channel_ + ".splits").c_str(), pieces.data(), bytes.data(),
                                            offsets.data(), members * row, message);
    if (received == nullptr) return failed(message);
    matrix->resize(members * members);
    std::memcpy(matrix->data(), hvds_received_data(received), members * row);
    hvds_received_release(received);
    return absl::OkStatus();
  }

  absl::Status exchange(OpKernelContext* context) const {
    const Tensor& vector = context->input(0);
    const int32_t* splits = context->input(1).vec<int32_t>().data();
    const int64_t members = context->input(1).NumElements();
    std::vector<int32_t> matrix;
    TF_RETURN_IF_ERROR(tell_splits(splits, members, &matrix));
    const int64_t row = width_ * tensorflow::DataTypeSize(vector.dtype());
    const char* next = static_cast<const char*>(vector.data());
    std::vector<const void*> pieces;
    std::vector<int64_t> bytes, offsets(members, 0);
    for (int64_t member = 0; member < members; ++member) {
      pieces.push_back(next);
      bytes.push_back(splits[member] * row);
      next += bytes.back();
      for (int64_t sender = 0; sender < me_; ++sender) offsets[member] += matrix[sender * members + member] * row;
    }
    Tensor* lengths = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(1, TensorShape({members}), &lengths));
    int64_t rows = 0;
    for (int64_t sender = 0; sender < members; ++sender) {
      lengths->vec<int32_t>()(sender) = matrix[sender * members + me_];
      rows += matrix[sender * members + me_];
    }
    char message[256];
    hvds_received* received = hvds_exchange(group_, channel_.c_str(), pieces.data(), bytes.data(), offsets.data(),
                                            rows * row, message);
    if (received == nullptr) return failed(message);
    auto* buffer = new InboxBuffer(received, rows * row);
    context->set_output(0, Tensor(vector.dtype(), TensorShape({rows * width_}), buffer));
    buffer->Unref();
    return absl::OkStatus();
  }

  absl::Status failed(const char* message) const {
    return absl::AbortedError(absl::StrCat("The exchange ", channel_, " in shared memory failed: ", message));
  }

  int64_t group_;
  std::string channel_;
  int64_t me_;
  int64_t width_;
};

REGISTER_KERNEL_BUILDER(Name("HvdSparseSharedExchangeRagged").Device(tensorflow::DEVICE_CPU), SharedExchangeRaggedOp);
REGISTER_KERNEL_BUILDER(Name("HvdSparseSharedExchange").Device(tensorflow::DEVICE_CPU), SharedExchangeOp);

}  // namespace
}  // namespace hvds
