// What the operations share: the kernels' view of TensorFlow's element types and threads, and the checks of arguments.
#ifndef HVD_SPARSE_OPS_OP_SUPPORT_H_
#define HVD_SPARSE_OPS_OP_SUPPORT_H_

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
