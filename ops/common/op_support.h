// What the ops share: TensorFlow's element types and threads in the form the kernels expect, and argument checks.
#ifndef HVD_SPARSE_OPS_OP_SUPPORT_H_
#define HVD_SPARSE_OPS_OP_SUPPORT_H_

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dtype.h"
#include "names_op.h"
#include "parallel.h"
#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensorflow/core/lib/core/threadpool.h"

namespace hvds {

inline hvds_dtype dtype_of(tensorflow::DataType type) {
  if (type == tensorflow::DT_HALF) return HVDS_FLOAT16;
  if (type == tensorflow::DT_BFLOAT16) return HVDS_BFLOAT16;
  if (type == tensorflow::DT_DOUBLE) return HVDS_FLOAT64;
  CHECK_EQ(type, tensorflow::DT_FLOAT);  // the op's registration allows no other
  return HVDS_FLOAT32;
}

// An invalid argument: the pieces of the message say what was expected and what was given.
template <typename... Pieces>
absl::Status invalid_argument(const Pieces&... pieces) {
  return absl::InvalidArgumentError(absl::StrCat(pieces...));
}

// The value of an int32 or int64 scalar tensor.
inline int64_t number_of(const Tensor& scalar) {
  return scalar.dtype() == tensorflow::DT_INT32 ? scalar.scalar<int32_t>()() : scalar.scalar<int64_t>()();
}

// Large outputs of a kernel, reused once nobody holds them. TensorFlow's CPU allocator returns large blocks to the
// operating system, and fresh ones cost a page fault per 4 KB, which is more than the kernels' own work.
//
// An output belongs to its holders alone, so that a later op may overwrite it in place.
class KeptOutputs {
 public:
  // The most blocks kept for later calls: for concurrent calls, and for other shapes.
  explicit KeptOutputs(size_t most = 3) : shelf_(std::make_shared<Shelf>(most)) {}

  // Like OpKernelContext::allocate_output.
  absl::Status allocate(OpKernelContext* context, int index, const TensorShape& shape,
                        Tensor** output) {
    const tensorflow::DataType type = context->expected_output_dtype(index);
    if (shape.num_elements() * tensorflow::DataTypeSize(type) < kWorthKeeping) {
      return context->allocate_output(index, shape, output);
    }
    Tensor memory;
    if (!shelf_->take(type, shape, &memory)) TF_RETURN_IF_ERROR(context->allocate_temp(type, shape, &memory));
    tensorflow::core::RefCountPtr<tensorflow::TensorBuffer> lent(new Lent(std::move(memory), shelf_));
    context->set_output(index, Tensor(type, shape, std::move(lent)));
    *output = context->mutable_output(index);
    return absl::OkStatus();
  }

 private:
  static constexpr int64_t kWorthKeeping = 1 << 20;  // bytes

  // Memory kept for later calls.
  class Shelf {
   public:
    explicit Shelf(size_t most) : most_(most) {}

    bool take(tensorflow::DataType type, const TensorShape& shape, Tensor* memory) {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto fits = [&](const Tensor& each) { return each.dtype() == type && each.shape() == shape; };
      const auto found = std::find_if(waiting_.begin(), waiting_.end(), fits);
      if (found == waiting_.end()) return false;
      *memory = std::move(*found);
      waiting_.erase(found);
      return true;
    }

    void put(Tensor memory) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (waiting_.size() == most_) waiting_.erase(waiting_.begin());
      waiting_.push_back(std::move(memory));
    }

   private:
    const size_t most_;
    std::mutex mutex_;
    std::vector<Tensor> waiting_;
  };

  // A tensor's buffer whose memory returns to the shelf when the last holder releases it.
  class Lent : public tensorflow::TensorBuffer {
   public:
    Lent(Tensor memory, std::shared_ptr<Shelf> shelf)
        : TensorBuffer(memory.data()), memory_(std::move(memory)), shelf_(std::move(shelf)) {}
    ~Lent() override { shelf_->put(std::move(memory_)); }

    size_t size() const override { return memory_.TotalBytes(); }
    TensorBuffer* root_buffer() override { return this; }
    void FillAllocationDescription(tensorflow::AllocationDescription* description) const override {
      description->set_requested_bytes(static_cast<int64_t>(size()));
    }

   private:
    Tensor memory_;
    const std::shared_ptr<Shelf> shelf_;
  };

  const std::shared_ptr<Shelf> shelf_;
};

// The threads that TensorFlow uses for work inside an op; valid as long as `context` lives.
class DeviceThreads {
 public:
  explicit DeviceThreads(OpKernelContext* context)
      : pool_(context->device()->tensorflow_cpu_worker_threads()->workers),
        parallel_{this, pool_->NumThreads(), &DeviceThreads::run} {}
  DeviceThreads(const DeviceThreads&) = delete;
  DeviceThreads& operator=(const DeviceThreads&) = delete;

  const hvds_parallel* get() const { return &parallel_; }

 private:
  static void run(void* context, int tasks, void (*task)(void* argument, int index), void* argument) {
    auto* self = static_cast<DeviceThreads*>(context);
    self->pool_->ParallelFor(tasks, tsl::thread::ThreadPool::SchedulingParams::Fixed(1),
                             [task, argument](int64_t first, int64_t last) {
                               for (int64_t index = first; index < last; ++index)
                                 task(argument, static_cast<int>(index));
                             });
  }

  tensorflow::thread::ThreadPool* pool_;
  hvds_parallel parallel_;
};

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_OP_SUPPORT_H_
