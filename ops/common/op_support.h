// What the operations share: the kernels' view of TensorFlow's element types and threads, and the checks of arguments.
#ifndef HVD_SPARSE_OPS_OP_SUPPORT_H_
#define HVD_SPARSE_OPS_OP_SUPPORT_H_

#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dtype.h"
#include "parallel.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/lib/core/threadpool.h"

namespace hvds {

inline hvds_dtype dtype_of(tensorflow::DataType type) {
  if (type == tensorflow::DT_HALF) return HVDS_FLOAT16;
  if (type == tensorflow::DT_BFLOAT16) return HVDS_BFLOAT16;
  if (type == tensorflow::DT_DOUBLE) return HVDS_FLOAT64;
  CHECK_EQ(type, tensorflow::DT_FLOAT);  // the registration admits no other
  return HVDS_FLOAT32;
}

// An argument that cannot be: the pieces of the message say what was expected and what came.
template <typename... Pieces>
absl::Status invalid_argument(const Pieces&... pieces) {
  return absl::InvalidArgumentError(absl::StrCat(pieces...));
}

// A scalar tensor int32 or int64 as a number.
inline int64_t number_of(const tensorflow::Tensor& scalar) {
  return scalar.dtype() == tensorflow::DT_INT32 ? scalar.scalar<int32_t>()() : scalar.scalar<int64_t>()();
}

// Large outputs of a kernel, used again once nobody else holds them. TensorFlow's CPU allocator gives large blocks back to
// the operating system, and fresh ones cost a page fault for every 4 KB, which is more than the kernels' own work.
class KeptOutputs {
 public:
  // How many at most; by default one in use, one being made, one that a slow consumer holds.
  explicit KeptOutputs(size_t most = 3) : most_(most) {}

  // As OpKernelContext::allocate_output.
  absl::Status allocate(tensorflow::OpKernelContext* context, int index, const tensorflow::TensorShape& shape,
                        tensorflow::Tensor** output) {
    const tensorflow::DataType type = context->expected_output_dtype(index);
    if (shape.num_elements() * tensorflow::DataTypeSize(type) < kWorthKeeping) {
      return context->allocate_output(index, shape, output);
    }
    tensorflow::Tensor tensor;
    if (!take(type, shape, &tensor)) {
      TF_RETURN_IF_ERROR(context->allocate_temp(type, shape, &tensor));
      keep(tensor);
    }
    context->set_output(index, tensor);
    *output = context->mutable_output(index);
    return absl::OkStatus();
  }

 private:
  static constexpr int64_t kWorthKeeping = 1 << 20;  // bytes

  bool take(tensorflow::DataType type, const tensorflow::TensorShape& shape, tensorflow::Tensor* tensor) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const tensorflow::Tensor& each : kept_) {
      if (each.dtype() != type || each.shape() != shape || !each.RefCountIsOne()) continue;
      *tensor = each;
      return true;
    }
    return false;
  }

  void keep(const tensorflow::Tensor& tensor) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (kept_.size() < most_) {
      kept_.push_back(tensor);
      return;
    }
    for (tensorflow::Tensor& each : kept_) {
      if (!each.RefCountIsOne()) continue;
      each = tensor;
      return;
    }
  }

  const size_t most_;
  std::mutex mutex_;
  std::vector<tensorflow::Tensor> kept_;
};

// The threads among which TensorFlow shares the work inside an operation, for as long as `context` lives.
class DeviceThreads {
 public:
  explicit DeviceThreads(tensorflow::OpKernelContext* context)
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
