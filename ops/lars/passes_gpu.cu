// LARS and LAMB on a GPU. A launch gets the layers' addresses as arguments, for as many layers as fit, so that nothing
// has to be copied to the device first. Sums: a warp adds a chunk, each thread one of its lanes, and a thread block has
// a warp for each chunk of a block, so that the order of additions is that of blocks.h on every device.
#include "passes_gpu.h"

#include <cuda_runtime.h>

#include <cfloat>
#include <cmath>
#include <utility>

#include "../common/elements.h"
#include "list.h"

#define HVDS_INLINE __device__ inline

namespace lars {
namespace {

using hvds::Bfloat16;
using hvds::Half;

#include "rules.inc"

constexpr int kChunks = kBlock / kChunk;        // per block
constexpr int kSumThreads = kChunks * kLanes;   // a warp for each chunk
constexpr int kUpdateThreads = 256;             // per chunk
constexpr int kLayersOfALaunch = 60;            // a launch has 4 KB for its arguments
constexpr int kTensorsOfALaunch = 400;
constexpr unsigned kAllLanes = 0xffffffffu;
static_assert(kLanes == 32, "a warp is a row of lanes");

const char* describe(int code) {
  if (code == LARS_BAD_ARGUMENT) {
    return "an argument is out of range: expected known dtypes, sizes of at least 0, a range of blocks that are there, "
           "betas in [0, 1), a step of at least 1 and no null pointer to what is not empty";
  }
  return cudaGetErrorString(static_cast<cudaError_t>(code));
}

// ---- Arguments of a launch ----

struct Entry {
  void* weight;
  void* slots[2];
  const void* gradient;
  int64_t size;
  int64_t first;   // the launch's block that is the layer's first one; negative if an earlier launch has that
  int64_t number;  // in the list
  double decay;
};

struct Batch {
  int count;
  Entry entries[kLayersOfALaunch];
};

struct Rows {
  int count;
  int64_t starts[kTensorsOfALaunch + 1];
};

// ---- Kernels ----

__device__ inline const Entry& entry_of(const Batch& batch, int64_t block) {
  int low = 0;
  for (int high = batch.count - 1; low < high;) {
    const int middle = (low + high + 1) / 2;
    if (batch.entries[middle].first <= block) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return batch.entries[low];
}

__device__ inline int64_t end_of(const Entry& entry, int64_t begin) {
  return entry.size - begin < kChunk ? entry.size : begin + kChunk;
}

// The sum over a warp's lanes, valid in lane 0.
__device__ inline double folded(double sum) {
#pragma unroll
  for (unsigned half = kLanes / 2; half > 0; half /= 2) sum += __shfl_down_sync(kAllLanes, sum, half);
  return sum;
}

// Adds the chunks' two sums, held by the first lane of each warp, in order; the first thread writes the totals.
__device__ inline void write_block(double one, double other, int chunks, double* to) {
  __shared__ double of_chunks[2][kChunks];
  if (threadIdx.x % kLanes == 0) {
    of_chunks[0][threadIdx.x / kLanes] = one;
    of_chunks[1][threadIdx.x / kLanes] = other;
  }
  __syncthreads();
  if (threadIdx.x >= 2) return;
  double sum = 0;
  for (int chunk = 0; chunk < chunks; ++chunk) sum += of_chunks[threadIdx.x][chunk];
  to[threadIdx.x] = sum;
}

__device__ inline int chunks_of(const Entry& entry, int64_t block) {
  const int64_t left = entry.size - block * kBlock;
  return left >= kBlock ? kChunks : int((left + kChunk - 1) / kChunk);
}

template <typename Element>
__global__ void __launch_bounds__(kSumThreads) lars_partials_kernel(const Batch batch, double* partials) {
  const Entry& entry = entry_of(batch, blockIdx.x);
  const int64_t block = blockIdx.x - entry.first;
  const auto* weights = static_cast<const Element*>(entry.weight);
  const auto* gradients = static_cast<const Element*>(entry.gradient);
  const int64_t begin = block * kBlock + int64_t(threadIdx.x / kLanes) * kChunk;
  const int64_t end = end_of(entry, begin);
  double of_weights = 0, of_gradients = 0;
#pragma unroll 8
  for (int64_t at = begin + threadIdx.x % kLanes; at < end; at += kLanes) {
    const double weight = number(weights[at]), gradient = number(gradients[at]);
    of_weights += weight * weight;
    of_gradients += gradient * gradient;
  }
  write_block(folded(of_weights), folded(of_gradients), chunks_of(entry, block), partials + 2 * int64_t(blockIdx.x));
}

template <typename Element, typename Number>
__global__ void __launch_bounds__(kSumThreads)
    lamb_partials_kernel(const Batch batch, const LambNumbers<Number> numbers, double* partials) {
  const Entry& entry = entry_of(batch, blockIdx.x);
  const int64_t block = blockIdx.x - entry.first;
  const auto* weights = static_cast<const Element*>(entry.weight);
  const auto* firsts = static_cast<const Element*>(entry.slots[0]);
  const auto* seconds = static_cast<const Element*>(entry.slots[1]);
  const auto* gradients = static_cast<const Element*>(entry.gradient);
  const auto decay = Number(entry.decay);
  const int64_t begin = block * kBlock + int64_t(threadIdx.x / kLanes) * kChunk;
  const int64_t end = end_of(entry, begin);
  double of_weights = 0, of_directions = 0;
#pragma unroll 4
  for (int64_t at = begin + threadIdx.x % kLanes; at < end; at += kLanes) {
    const Number weight = number(weights[at]);
    Number first = number(firsts[at]), second = number(seconds[at]);
    const double u = lamb_direction<Number>(numbers, number(gradients[at]), weight, decay, first, second);
    of_weights += double(weight) * double(weight);
    of_directions += u * u;
  }
  write_block(folded(of_weights), folded(of_directions), chunks_of(entry, block), partials + 2 * int64_t(blockIdx.x));
}

// The updates use a thread block per chunk; those past the end of a layer do nothing.
__device__ inline int64_t begin_of(const Entry& entry) {
  return (blockIdx.x / kChunks - entry.first) * kBlock + int64_t(blockIdx.x % kChunks) * kChunk;
}

template <typename Element, bool kNesterov, typename Number>
__global__ void __launch_bounds__(kUpdateThreads)
    lars_update_kernel(const Batch batch, double learning_rate, const double* ratios, Number momentum) {
  const Entry& entry = entry_of(batch, blockIdx.x / kChunks);
  auto* weights = static_cast<Element*>(entry.weight);
  auto* velocities = static_cast<Element*>(entry.slots[0]);
  const auto* gradients = static_cast<const Element*>(entry.gradient);
  const auto scale = Number(learning_rate * ratios[entry.number]), decay = Number(entry.decay);
  const int64_t begin = begin_of(entry), end = end_of(entry, begin);
#pragma unroll 4
  for (int64_t at = begin + threadIdx.x; at < end; at += kUpdateThreads) {
    Number weight = number(weights[at]), velocity = number(velocities[at]);
    lars_step<kNesterov, Number>(number(gradients[at]), scale, decay, momentum, weight, velocity);
    store_number(velocities + at, velocity);
    store_number(weights + at, weight);
  }
}

template <typename Element, typename Number>
__global__ void __launch_bounds__(kUpdateThreads) lamb_update_kernel(const Batch batch, double learning_rate,
                                                                      const double* ratios,
                                                                      const LambNumbers<Number> numbers) {
  const Entry& entry = entry_of(batch, blockIdx.x / kChunks);
  auto* weights = static_cast<Element*>(entry.weight);
  auto* firsts = static_cast<Element*>(entry.slots[0]);
  auto* seconds = static_cast<Element*>(entry.slots[1]);
  const auto* gradients = static_cast<const Element*>(entry.gradient);
  const auto scale = Number(learning_rate * ratios[entry.number]), decay = Number(entry.decay);
  const int64_t begin = begin_of(entry), end = end_of(entry, begin);
#pragma unroll 2
  for (int64_t at = begin + threadIdx.x; at < end; at += kUpdateThreads) {
    const Number weight = number(weights[at]);
    Number first = number(firsts[at]), second = number(seconds[at]);
    const Number direction = lamb_direction<Number>(numbers, number(gradients[at]), weight, decay, first, second);
    store_number(firsts + at, first);
    store_number(seconds + at, second);
    store_number(weights + at, weight - scale * direction);
  }
}

// One thread per sum.
__global__ void __launch_bounds__(kUpdateThreads)
    layer_sums_kernel(const Rows rows, const double* partials, int64_t columns, double* sums) {
  const int64_t place = int64_t(blockIdx.x) * kUpdateThreads + threadIdx.x;
  if (place >= rows.count * columns) return;
  const int64_t tensor = place / columns, column = place % columns;
  double sum = 0;
  for (int64_t row = rows.starts[tensor]; row < rows.starts[tensor + 1]; ++row) sum += partials[row * columns + column];
  sums[place] = sum;
}

// ---- Launches ----

template <typename... Parameters, typename... Arguments>
int launch(void (*kernel)(Parameters...), int64_t blocks, int threads, void* stream, Arguments&&... arguments) {
  if (blocks > INT32_MAX) return LARS_BAD_ARGUMENT;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(threads);
  config.stream = static_cast<cudaStream_t>(stream);
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
  if (error != cudaSuccess) cudaGetLastError();  // otherwise it would surface in a later call
  return static_cast<int>(error);
}

// Calls body with a null pointer of the C++ type that represents a dtype.
template <typename Body>
int with_type(int dtype, Body&& body) {
  if (dtype == LARS_FLOAT16) return body(static_cast<Half*>(nullptr));
  if (dtype == LARS_BFLOAT16) return body(static_cast<Bfloat16*>(nullptr));
  if (dtype == LARS_FLOAT64) return body(static_cast<double*>(nullptr));
  return body(static_cast<float*>(nullptr));
}

// Calls body(dtype, batch, start, blocks) for batches of layers of one dtype, whose blocks start at number `start`.
template <typename Body>
int for_batches(const lars_layer* layers, int64_t count, int64_t first, int64_t last, const Body& body) {
  Batch batch = {};
  int dtype = 0, code = 0;
  int64_t start = first, end = first, before = 0;  // before: blocks of the preceding layers
  for (int64_t number = 0; number < count && before < last && code == 0; ++number) {
    const lars_layer& layer = layers[number];
    const int64_t blocks = blocks_of(layer.size);
    const bool takes_part = blocks > 0 && before + blocks > first;
    if (takes_part && batch.count > 0 && (batch.count == kLayersOfALaunch || layer.dtype != dtype)) {
      code = body(dtype, batch, start, end - start);
      batch.count = 0;
      start = end;
    }
    if (takes_part) {
      dtype = layer.dtype;
      batch.entries[batch.count++] = {layer.weight, {layer.slots[0], layer.slots[1]}, layer.gradient, layer.size,
                                      before - start, number, layer.decay};
      end = std::min(before + blocks, last);
    }
    before += blocks;
  }
  return code != 0 || batch.count == 0 ? code : body(dtype, batch, start, end - start);
}

template <typename Element, bool kNesterov>
int launch_lars_update(const Batch& batch, int64_t blocks, double momentum, double learning_rate, const double* ratios,
                       void* stream) {
  using Number = typename NumberOf<Element>::type;
  return launch(lars_update_kernel<Element, kNesterov, Number>, blocks * kChunks, kUpdateThreads, stream, batch,
                learning_rate, ratios, Number(momentum));
}

}  // namespace
}  // namespace lars

int lars_gpu_interface(void) { return LARS_GPU_INTERFACE; }

const char* lars_gpu_error(int code) { return lars::describe(code); }

int lars_gpu_partials(const lars_layer* layers, int64_t count, int64_t first, int64_t last, double* partials,
                      void* stream) {
  using namespace lars;
  if (!valid(layers, count, 0) || !valid_range(layers, count, first, last, partials)) return LARS_BAD_ARGUMENT;
  return for_batches(layers, count, first, last, [&](int dtype, const Batch& batch, int64_t start, int64_t blocks) {
    return with_type(dtype, [&](auto* type) {
      using Element = std::remove_pointer_t<decltype(type)>;
      return launch(lars_partials_kernel<Element>, blocks, kSumThreads, stream, batch, partials + 2 * (start - first));
    });
  });
}

int lars_gpu_update(const lars_layer* layers, int64_t count, const lars_rule* rule, double learning_rate,
                    const double* ratios, void* stream) {
  using namespace lars;
  const int64_t blocks = valid(layers, count, 1) ? count_blocks(layers, count) : int64_t{LARS_BAD_ARGUMENT};
  if (blocks < 0 || rule == nullptr || (blocks > 0 && ratios == nullptr)) return LARS_BAD_ARGUMENT;
  return for_batches(layers, count, 0, blocks, [&](int dtype, const Batch& batch, int64_t, int64_t of_batch) {
    return with_type(dtype, [&](auto* type) {
      using Element = std::remove_pointer_t<decltype(type)>;
      const auto update = rule->nesterov != 0 ? launch_lars_update<Element, true> : launch_lars_update<Element, false>;
      return update(batch, of_batch, rule->momentum, learning_rate, ratios, stream);
    });
  });
}

int lamb_gpu_partials(const lars_layer* layers, int64_t count, const lamb_rule* rule, int64_t first, int64_t last,
                      double* partials, void* stream) {
  using namespace lars;
  if (!valid(layers, count, 2) || !valid(rule) || !valid_range(layers, count, first, last, partials)) {
    return LARS_BAD_ARGUMENT;
  }
  const LambRule numbers = derived(*rule);
  return for_batches(layers, count, first, last, [&](int dtype, const Batch& batch, int64_t start, int64_t blocks) {
    return with_type(dtype, [&](auto* type) {
      using Element = std::remove_pointer_t<decltype(type)>;
      using Number = typename NumberOf<Element>::type;
      return launch(lamb_partials_kernel<Element, Number>, blocks, kSumThreads, stream, batch, rounded<Number>(numbers),
                    partials + 2 * (start - first));
    });
  });
}

int lamb_gpu_update(const lars_layer* layers, int64_t count, const lamb_rule* rule, double learning_rate,
                    const double* ratios, void* stream) {
  using namespace lars;
  const int64_t blocks = valid(layers, count, 2) ? count_blocks(layers, count) : int64_t{LARS_BAD_ARGUMENT};
  if (blocks < 0 || !valid(rule) || (blocks > 0 && ratios == nullptr)) return LARS_BAD_ARGUMENT;
  const LambRule numbers = derived(*rule);
  return for_batches(layers, count, 0, blocks, [&](int dtype, const Batch& batch, int64_t, int64_t of_batch) {
    return with_type(dtype, [&](auto* type) {
      using Element = std::remove_pointer_t<decltype(type)>;
      using Number = typename NumberOf<Element>::type;
      return launch(lamb_update_kernel<Element, Number>, of_batch * kChunks, kUpdateThreads, stream, batch,
                    learning_rate, ratios, rounded<Number>(numbers));
    });
  });
}

int lars_gpu_layer_sums(const int64_t* sizes, int64_t count, const double* partials, int64_t rows, int64_t columns,
                        double* sums, void* stream) {
  using namespace lars;
  const int64_t blocks = count_blocks(count, [sizes](int64_t number) { return sizes[number]; });
  if (blocks != rows || columns < 0) return LARS_BAD_ARGUMENT;
  if (columns == 0) return LARS_OK;
  int64_t row = 0;
  for (int64_t first = 0; first < count; first += kTensorsOfALaunch) {
    Rows batch = {};
    batch.count = static_cast<int>(std::min<int64_t>(count - first, kTensorsOfALaunch));
    batch.starts[0] = row;
    for (int number = 0; number < batch.count; ++number) {
      row += blocks_of(sizes[first + number]);
      batch.starts[number + 1] = row;
    }
    const int64_t threads = batch.count * columns;
    const int code = launch(layer_sums_kernel, (threads + kUpdateThreads - 1) / kUpdateThreads, kUpdateThreads, stream,
                            batch, partials, columns, sums + first * columns);
    if (code != 0) return code;
  }
  return LARS_OK;
}
