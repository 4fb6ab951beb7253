// The largest magnitudes of rows on a GPU: one thread block per row, which counts its digits in shared memory.
#include "rows_gpu.h"

#include <cuda_runtime.h>

#include <type_traits>
#include <utility>

namespace hvds {
namespace {

constexpr int kBadArgument = -1;
constexpr int kThreads = 256;  // per block
constexpr int kWarps = kThreads / 32;
constexpr int kDigitBits = 11;
constexpr int kBins = 1 << kDigitBits;
constexpr int kBinsOfThread = kBins / kThreads;
constexpr int64_t kMostBlocks = 65535;
constexpr unsigned kAllLanes = 0xffffffffu;

const char* describe(int code) {
  if (code == kBadArgument) {
    return "an argument is out of range: expected 0 <= kept <= width < 2^31 (65536 at most where positions are narrow), "
           "float32, float16 or bfloat16, and no null pointer to what is not empty";
  }
  return cudaGetErrorString(static_cast<cudaError_t>(code));
}

// ---- The magnitude of rank `kept` ----

// An element's bits without the sign, which compare like magnitudes.
__device__ inline uint32_t key_of(uint32_t bits) { return bits & 0x7fffffffu; }
__device__ inline uint32_t key_of(uint16_t bits) { return bits & 0x7fffu; }

template <typename Element>
__device__ constexpr int key_bits() {
  return sizeof(Element) * 8 - 1;
}

// What is kept of a row: keys above the edge, and the first `ties` of those equal to it.
struct Edge {
  uint32_t key;
  int64_t ties;
};

// Finds the bin that holds a rank, and the rank within it, in one thread; `sums` are those of each thread's bins.
__device__ inline void find_bin(const int32_t* bins, const int32_t* sums, int64_t rank, uint32_t* bin, int64_t* left) {
  int at = kThreads - 1;
  for (; at > 0 && sums[at] < rank; --at) rank -= sums[at];
  int found = (at + 1) * kBinsOfThread - 1;
  for (; found > 0 && bins[found] < rank; --found) rank -= bins[found];
  *bin = found;
  *left = rank;
}

// Called by all threads of a block; all get the same result.
template <typename Element>
__device__ Edge edge_of(const Element* row, int64_t width, int64_t kept) {
  __shared__ int32_t bins[kBins];
  __shared__ int32_t sums[kThreads];
  __shared__ uint32_t bin;
  __shared__ int64_t left;
  uint32_t prefix = 0;
  int64_t rank = kept;
  for (int bits = key_bits<Element>(); bits > 0; bits -= kDigitBits) {
    const int shift = bits > kDigitBits ? bits - kDigitBits : 0;
    for (int i = threadIdx.x; i < kBins; i += kThreads) bins[i] = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < width; i += kThreads) {
      const uint32_t key = key_of(row[i]);
      if (key >> bits == prefix) atomicAdd(&bins[(key >> shift) & ((1u << (bits - shift)) - 1)], 1);
    }
    __syncthreads();
    int32_t sum = 0;
    for (int i = 0; i < kBinsOfThread; ++i) sum += bins[threadIdx.x * kBinsOfThread + i];
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) find_bin(bins, sums, rank, &bin, &left);
    __syncthreads();
    prefix = prefix << (bits - shift) | bin;
    rank = left;
  }
  __syncthreads();
  return Edge{prefix, rank};
}

// ---- What is kept, in order ----

// How many of the block's threads before this one have a flag set, and how many in all.
struct Counted {
  int before;
  int all;
};

__device__ inline Counted count(bool flag, int32_t* of_warps) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const unsigned flags = __ballot_sync(kAllLanes, flag);
  if (lane == 0) of_warps[warp] = __popc(flags);
  __syncthreads();
  Counted counted{__popc(flags & ((1u << lane) - 1)), 0};
  for (int each = 0; each < kWarps; ++each) {
    if (each < warp) counted.before += of_warps[each];
    counted.all += of_warps[each];
  }
  __syncthreads();
  return counted;
}

template <typename Element, typename Position>
struct Kept {
  Element* y;       // or null
  Element* values;  // or null
  Position* positions;
};

template <typename Element, typename Position>
__device__ void emit(const Element* row, int64_t width, const Edge& edge, const Kept<Element, Position>& kept) {
  __shared__ int32_t of_warps[kWarps];
  int64_t sure_so_far = 0;
  int64_t ties_so_far = 0;
  for (int64_t first = 0; first < width; first += kThreads) {
    const int64_t i = first + threadIdx.x;
    const bool inside = i < width;
    const Element element = inside ? row[i] : Element{0};
    const bool sure = inside && key_of(element) > edge.key;
    const bool tie = inside && key_of(element) == edge.key;
    const Counted sures = count(sure, of_warps);
    const Counted ties = count(tie, of_warps);
    const int64_t ties_before = ties_so_far + ties.before;
    const bool chosen = sure || (tie && ties_before < edge.ties);
    if (inside && kept.y != nullptr) kept.y[i] = chosen ? element : Element{0};
    if (chosen) {
      const int64_t at = sure_so_far + sures.before + (ties_before < edge.ties ? ties_before : edge.ties);
      kept.positions[at] = Position(i);
      if (kept.values != nullptr) kept.values[at] = element;
    }
    sure_so_far += sures.all;
    ties_so_far += ties.all;
  }
}

// ---- Kernels ----

template <typename Element, typename Position>
__global__ void __launch_bounds__(kThreads)
    largest_kernel(const hvds_rows shape, const Element* x, const Kept<Element, Position> whole) {
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const Element* const from = x + row * shape.width;
    const Kept<Element, Position> kept{whole.y == nullptr ? nullptr : whole.y + row * shape.width,
                                       whole.values == nullptr ? nullptr : whole.values + row * shape.kept,
                                       whole.positions + row * shape.kept};
    const Edge none{0xffffffffu, 0};
    emit(from, shape.width, shape.kept == 0 ? none : edge_of(from, shape.width, shape.kept), kept);
  }
}

// y = 0 except at the positions: there it is the next value, or the element of x at the same position.
template <bool kFromX, typename Element, typename Position>
__global__ void __launch_bounds__(kThreads)
    write_kernel(const hvds_rows shape, const Element* from, const Position* positions, Element* y) {
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    for (int64_t i = threadIdx.x; i < shape.width; i += kThreads) y[row * shape.width + i] = Element{0};
    __syncthreads();
    for (int64_t i = row * shape.kept + threadIdx.x; i < (row + 1) * shape.kept; i += kThreads) {
      const int64_t at = positions[i];
      if (at < 0 || at >= shape.width) continue;
      y[row * shape.width + at] = from[kFromX ? row * shape.width + at : i];
    }
  }
}

template <typename Element, typename Position>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const hvds_rows shape, const Element* x, const Position* positions, Element* values) {
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    for (int64_t i = row * shape.kept + threadIdx.x; i < (row + 1) * shape.kept; i += kThreads) {
      const int64_t at = positions[i];
      values[i] = at < 0 || at >= shape.width ? Element{0} : x[row * shape.width + at];
    }
  }
}

// ---- Launches ----

template <typename... Parameters, typename... Arguments>
int launch(void (*kernel)(Parameters...), const hvds_rows& shape, void* stream, Arguments&&... arguments) {
  if (shape.rows == 0) return 0;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(unsigned(shape.rows < kMostBlocks ? shape.rows : kMostBlocks));
  config.blockDim = dim3(kThreads);
  config.stream = static_cast<cudaStream_t>(stream);
  return static_cast<int>(cudaLaunchKernelEx(&config, kernel, shape, std::forward<Arguments>(arguments)...));
}

bool valid(const hvds_rows& shape) {
  return shape.rows >= 0 && shape.kept >= 0 && shape.kept <= shape.width &&
         shape.width <= (shape.narrow ? 65536 : INT32_MAX) && shape.dtype >= HVDS_FLOAT32 &&
         shape.dtype <= HVDS_BFLOAT16;
}

bool present(const void* pointer, int64_t size) { return pointer != nullptr || size == 0; }

// Calls function(element, position) with a null pointer of each type.
template <typename Function>
int typed(const hvds_rows& shape, const Function& function) {
  uint32_t* const whole = nullptr;
  uint16_t* const half = nullptr;
  int32_t* const wide = nullptr;
  if (shape.dtype == HVDS_FLOAT32) return shape.narrow ? function(whole, half) : function(whole, wide);
  return shape.narrow ? function(half, half) : function(half, wide);
}

template <bool kFromX>
int write(const hvds_rows& shape, const void* from, const void* positions, void* y, void* stream) {
  return typed(shape, [&](auto* element, auto* position) {
    using Element = std::remove_pointer_t<decltype(element)>;
    using Position = std::remove_pointer_t<decltype(position)>;
    return launch(write_kernel<kFromX, Element, Position>, shape, stream, static_cast<const Element*>(from),
                  static_cast<const Position*>(positions), static_cast<Element*>(y));
  });
}

}  // namespace
}  // namespace hvds

int hvds_rows_gpu_interface(void) { return HVDS_ROWS_GPU_INTERFACE; }

const char* hvds_rows_gpu_error(int code) { return hvds::describe(code); }

int hvds_rows_gpu_largest(const hvds_rows* shape, const void* x, void* y, void* values, void* positions, void* stream) {
  using namespace hvds;
  const int64_t size = shape->rows * shape->width, kept = shape->rows * shape->kept;
  if (!valid(*shape) || !present(x, size) || !present(positions, kept)) return kBadArgument;
  return typed(*shape, [&](auto* element, auto* position) {
    using Element = std::remove_pointer_t<decltype(element)>;
    using Position = std::remove_pointer_t<decltype(position)>;
    const Kept<Element, Position> whole{static_cast<Element*>(y), static_cast<Element*>(values),
                                        static_cast<Position*>(positions)};
    return launch(largest_kernel<Element, Position>, *shape, stream, static_cast<const Element*>(x), whole);
  });
}

int hvds_rows_gpu_place(const hvds_rows* shape, const void* values, const void* positions, void* y, void* stream) {
  using namespace hvds;
  const int64_t size = shape->rows * shape->width, kept = shape->rows * shape->kept;
  if (!valid(*shape) || !present(values, kept) || !present(positions, kept) || !present(y, size)) return kBadArgument;
  return write<false>(*shape, values, positions, y, stream);
}

int hvds_rows_gpu_gather(const hvds_rows* shape, const void* x, const void* positions, void* values, void* stream) {
  using namespace hvds;
  const int64_t size = shape->rows * shape->width, kept = shape->rows * shape->kept;
  if (!valid(*shape) || !present(x, size) || !present(positions, kept) || !present(values, kept)) return kBadArgument;
  return typed(*shape, [&](auto* element, auto* position) {
    using Element = std::remove_pointer_t<decltype(element)>;
    using Position = std::remove_pointer_t<decltype(position)>;
    return launch(gather_kernel<Element, Position>, *shape, stream, static_cast<const Element*>(x),
                  static_cast<const Position*>(positions), static_cast<Element*>(values));
  });
}

int hvds_rows_gpu_mask(const hvds_rows* shape, const void* x, const void* positions, void* y, void* stream) {
  using namespace hvds;
  const int64_t size = shape->rows * shape->width, kept = shape->rows * shape->kept;
  if (!valid(*shape) || !present(x, size) || !present(positions, kept) || !present(y, size)) return kBadArgument;
  return write<true>(*shape, x, positions, y, stream);
}
