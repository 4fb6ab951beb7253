// Momentum on a GPU: each thread has its own elements, so the order of threads does not matter.
#include "momentum_gpu.h"

#include <cuda_runtime.h>

#include <utility>

#include "../common/elements.h"

namespace hvds {
namespace {

constexpr int kBadArgument = -1;
constexpr int kThreads = 256;  // per block
constexpr int64_t kEach = 8;   // elements per thread, if the vector is long enough
constexpr int32_t kNobody = INT32_MAX;

const char* describe(int code) {
  if (code == kBadArgument) {
    return "an argument is out of range: expected count >= 1, sizes of 0 to 2^31 - 1, a known dtype and no null pointer "
           "to what is not empty";
  }
  return cudaGetErrorString(static_cast<cudaError_t>(code));
}

// ---- Kernels ----

struct Vectors {
  const float* velocity;
  const float* decay;
  const float* gain;
  float* velocity_out;
  float* moves;  // null: velocity_out is the move
  int32_t* culprit;
};

__device__ inline int64_t own_first() { return int64_t(blockIdx.x) * kThreads + threadIdx.x; }

__device__ inline int64_t all_threads() { return int64_t(gridDim.x) * kThreads; }

__device__ inline bool not_finite(float value) { return (bits_of(value) & 0x7fffffffu) >= 0x7f800000u; }

template <typename Part>
__device__ int32_t blame_at(const Part* parts, int count, int64_t size, int64_t index) {
  int part = 0;
  while (part < count && !not_finite(widen(parts[part * size + index]))) ++part;
  return 1 + part;
}

__global__ void __launch_bounds__(kThreads) begin_kernel(int32_t* culprit) {
  if (threadIdx.x == 0) *culprit = kNobody;
}

__global__ void __launch_bounds__(kThreads) end_kernel(int32_t* culprit) {
  if (threadIdx.x == 0 && *culprit == kNobody) *culprit = 0;
}

template <typename Part>
__global__ void __launch_bounds__(kThreads)
    advance_kernel(const Part* parts, int count, int64_t size, const Vectors vectors) {
  const float decay = *vectors.decay, gain = *vectors.gain;
  for (int64_t i = own_first(); i < size; i += all_threads()) {
    float sum = widen(parts[i]);
    for (int part = 1; part < count; ++part) sum += widen(parts[part * size + i]);
    const float gained = gain * sum;
    const float velocity = decay * vectors.velocity[i] + gained;
    const float moves = vectors.moves == nullptr ? velocity : decay * velocity + gained;
    vectors.velocity_out[i] = velocity;
    if (vectors.moves != nullptr) vectors.moves[i] = moves;
    if (not_finite(moves)) atomicMin(vectors.culprit, blame_at(parts, count, size, i));
  }
}

__global__ void __launch_bounds__(kThreads) copy_kernel(const float* from, int64_t size, float* to) {
  for (int64_t i = own_first(); i < size; i += all_threads()) to[i] = from[i];
}

__global__ void __launch_bounds__(kThreads)
    clear_kernel(const int32_t* indices, int64_t count, int64_t size, float* vector) {
  for (int64_t i = own_first(); i < count; i += all_threads()) {
    if (indices[i] >= 0 && indices[i] < size) vector[indices[i]] = 0;
  }
}

// ---- Launches ----

// Queues kernels one after another; after the first error it queues nothing more.
class Queue {
 public:
  explicit Queue(void* stream) : stream_(static_cast<cudaStream_t>(stream)) {}

  // Launches as many blocks as `pieces` of work keep busy.
  template <typename... Parameters, typename... Arguments>
  void launch(void (*kernel)(Parameters...), int64_t pieces, Arguments&&... arguments) {
    if (error_ != cudaSuccess) return;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(unsigned(pieces / (kThreads * kEach) + 1));
    config.blockDim = dim3(kThreads);
    config.stream = stream_;
    error_ = cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
  }

  int error() const { return static_cast<int>(error_); }

 private:
  cudaStream_t stream_;
  cudaError_t error_ = cudaSuccess;
};

bool in_range(int64_t size) { return size >= 0 && size <= INT32_MAX; }

bool present(const void* pointer, int64_t size) { return pointer != nullptr || size == 0; }

template <typename Part>
int advance(const void* parts, int64_t count, int64_t size, const Vectors& vectors, void* stream) {
  Queue queue(stream);
  queue.launch(begin_kernel, 0, vectors.culprit);
  queue.launch(advance_kernel<Part>, size, static_cast<const Part*>(parts), int(count), size, vectors);
  queue.launch(end_kernel, 0, vectors.culprit);
  return queue.error();
}

}  // namespace
}  // namespace hvds

int hvds_momentum_gpu_interface(void) { return HVDS_MOMENTUM_GPU_INTERFACE; }

const char* hvds_momentum_gpu_error(int code) { return hvds::describe(code); }

int hvds_momentum_gpu_advance(const void* parts, int dtype, int64_t count, int64_t size, const float* velocity,
                              const float* decay, const float* gain, float* velocity_out, float* moves,
                              int32_t* culprit, void* stream) {
  using namespace hvds;
  if (count < 1 || count >= INT32_MAX || !in_range(size) || !present(parts, size) || !present(velocity, size) ||
      !present(velocity_out, size) || decay == nullptr || gain == nullptr || culprit == nullptr) {
    return kBadArgument;
  }
  const Vectors vectors{velocity, decay, gain, velocity_out, moves, culprit};
  switch (dtype) {
    case HVDS_FLOAT32:
      return advance<float>(parts, count, size, vectors, stream);
    case HVDS_FLOAT16:
      return advance<Half>(parts, count, size, vectors, stream);
    case HVDS_BFLOAT16:
      return advance<Bfloat16>(parts, count, size, vectors, stream);
    default:
      return kBadArgument;
  }
}

int hvds_momentum_gpu_clear(const float* vector, int64_t size, const int32_t* indices, int64_t count, float* cleared,
                            void* stream) {
  using namespace hvds;
  if (!in_range(size) || !in_range(count) || !present(vector, size) || !present(cleared, size) ||
      !present(indices, count)) {
    return kBadArgument;
  }
  Queue queue(stream);
  if (cleared != vector) queue.launch(copy_kernel, size, vector, size, cleared);
  queue.launch(clear_kernel, count, indices, count, size, cleared);
  return queue.error();
}
