// What Horovod 0.28.1 with GPUs takes from TensorFlow and does not find since 2.21; given to the compiler by -include.
#pragma once
#ifdef __cplusplus
#if __has_include("xla/stream_executor/stream.h")
#include "absl/status/statusor.h"
#include "xla/stream_executor/stream.h"

struct CUstream_st;

namespace xla {
template <class T>
using StatusOr = absl::StatusOr<T>;
}

namespace stream_executor::gpu {
inline CUstream_st* AsGpuStreamValue(Stream* stream) {
  return static_cast<CUstream_st*>(stream->platform_specific_handle().stream);
}
}  // namespace stream_executor::gpu
#endif
#endif
