// The CUDA runtime for a machine without a GPU: the kernels' own sources, built with a C++ compiler, run on the CPU.
//
// It replaces the toolkit's header of this name and provides only what the kernels use. Every thread of a block is a
// fiber with its own stack; a fiber runs until it waits for its warp or its block. A block's threads run in an order
// that is shuffled again at every barrier, and so do the blocks of a grid, so that a missing barrier, or a result that
// depends on the order of threads, shows as a wrong or changing result. Behaviour that the hardware leaves undefined is
// an error here: lanes of a warp at different operations, or a barrier after a thread of the block has ended.
//
// Not emulated: the order in which memory becomes visible to other threads, speed, and the rounding of instructions
// (the CPU follows IEEE 754, as does the GPU for the operations used).
#ifndef HVD_SPARSE_TESTS_EMULATED_CUDA_RUNTIME_H_
#define HVD_SPARSE_TESTS_EMULATED_CUDA_RUNTIME_H_

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

inline dim3 gridDim;
inline dim3 blockDim;
inline dim3 blockIdx;
inline dim3 threadIdx;

#define __global__
#define __device__
#define __host__
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __shared__ static  // one block runs at a time

namespace emulation {

enum class Meeting { kNone, kWarp, kBlock };

constexpr unsigned kLanes = 32;
constexpr size_t kStackBytes = 128 << 10;

struct Fiber {
  ucontext_t context;  // where it starts
  jmp_buf place;       // where it resumes: a jump costs no system call
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  bool begun = false;
  bool done = false;
  Meeting waits_for = Meeting::kNone;
  const char* operation = "";
  int turn = 0;                 // which of the two slots is in use: a lane may be one operation ahead, never two
  uint64_t slots[2] = {0, 0};  // what the lane shows to its warp
};

[[noreturn]] inline void die(const char* what, const char* detail) {
  std::fprintf(stderr, "emulated kernel: %s %s (block %u, thread %u)\n", what, detail, blockIdx.x, threadIdx.x);
  std::abort();
}

class Block {
 public:
  void run(unsigned threads, const std::function<void()>& body, std::mt19937& random) {
    if (threads % kLanes != 0) die("threads of a block do not fill its warps", "");
    while (fibers_.size() < threads) fibers_.push_back(std::make_unique<Fiber>());
    threads_ = threads;
    body_ = &body;
    for (unsigned i = 0; i < threads; ++i) start(*fibers_[i]);
    std::vector<unsigned> order(threads);
    std::iota(order.begin(), order.end(), 0u);
    while (advance(order)) {
      if (!release()) die("threads wait for each other for ever at", fibers_[waiting_thread()]->operation);
      shuffle_warps(order, random);
    }
  }

  void wait(Meeting meeting, const char* operation) {
    Fiber& fiber = *fibers_[threadIdx.x];
    fiber.waits_for = meeting;
    fiber.operation = operation;
    if (_setjmp(fiber.place) == 0) _longjmp(scheduler_, 1);
  }

  // Shows `value` to the warp; returns when all lanes have shown theirs.
  void show(uint64_t value, const char* operation) {
    Fiber& fiber = *fibers_[threadIdx.x];
    fiber.turn ^= 1;
    fiber.slots[fiber.turn] = value;
    wait(Meeting::kWarp, operation);
  }

  uint64_t shown_by(unsigned lane) const {
    const unsigned me = threadIdx.x;
    return fibers_[me / kLanes * kLanes + lane]->slots[fibers_[me]->turn];
  }

  static Block& current() {
    static Block block;
    return block;
  }

 private:
  void start(Fiber& fiber) {
    fiber.begun = false;
    fiber.done = false;
    fiber.waits_for = Meeting::kNone;
    fiber.turn = 0;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    makecontext(&fiber.context, &Block::enter, 0);
  }

  static void enter() {
    Block& block = current();
    (*block.body_)();
    block.fibers_[threadIdx.x]->done = true;
    _longjmp(block.scheduler_, 1);
  }

  // Runs a thread until it waits or ends.
  __attribute__((noinline)) void resume(Fiber& fiber) {
    if (_setjmp(scheduler_) != 0) return;
    if (fiber.begun) _longjmp(fiber.place, 1);
    fiber.begun = true;
    setcontext(&fiber.context);
  }

  // Runs every thread as far as possible; false when all have ended.
  bool advance(const std::vector<unsigned>& order) {
    bool alive = false;
    for (unsigned thread : order) {
      Fiber& fiber = *fibers_[thread];
      if (!fiber.done && fiber.waits_for == Meeting::kNone) {
        threadIdx.x = thread;
        resume(fiber);
      }
      alive = alive || !fiber.done;
    }
    return alive;
  }

  bool all_wait(unsigned first, unsigned count, Meeting meeting) const {
    for (unsigned i = first; i < first + count; ++i) {
      if (fibers_[i]->done || fibers_[i]->waits_for != meeting) return false;
    }
    return true;
  }

  bool release_if_met(unsigned first, unsigned count, Meeting meeting) {
    if (!all_wait(first, count, meeting)) return false;
    for (unsigned i = first; i < first + count; ++i) {
      if (std::strcmp(fibers_[i]->operation, fibers_[first]->operation) != 0) {
        die("threads meet at different operations:", fibers_[i]->operation);
      }
      fibers_[i]->waits_for = Meeting::kNone;
    }
    return true;
  }

  bool release() {
    bool released = release_if_met(0, threads_, Meeting::kBlock);
    for (unsigned first = 0; first < threads_; first += kLanes) {
      released = release_if_met(first, kLanes, Meeting::kWarp) || released;
    }
    return released;
  }

  unsigned waiting_thread() const {
    unsigned thread = 0;
    while (fibers_[thread]->done) ++thread;
    return thread;
  }

  // The order of warps, and one rotation of the lanes in each.
  void shuffle_warps(std::vector<unsigned>& order, std::mt19937& random) const {
    std::vector<unsigned> warps(threads_ / kLanes);
    std::iota(warps.begin(), warps.end(), 0u);
    std::shuffle(warps.begin(), warps.end(), random);
    const unsigned rotation = random();
    for (unsigned i = 0; i < threads_; ++i) order[i] = warps[i / kLanes] * kLanes + (i + rotation) % kLanes;
  }

  std::vector<std::unique_ptr<Fiber>> fibers_;
  unsigned threads_ = 0;
  const std::function<void()>* body_ = nullptr;
  jmp_buf scheduler_;
};

inline void run_grid(dim3 grid, dim3 block, const std::function<void()>& body) {
  static std::mt19937 random(1);
  gridDim = grid;
  blockDim = block;
  std::vector<unsigned> order(grid.x);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), random);
  for (unsigned number : order) {
    blockIdx.x = number;
    Block::current().run(block.x, body, random);
  }
}

template <typename T>
T exchange(T value, unsigned lane, const char* operation) {
  static_assert(sizeof(T) <= sizeof(uint64_t), "a lane shows up to eight bytes");
  uint64_t shown = 0;
  std::memcpy(&shown, &value, sizeof value);
  Block::current().show(shown, operation);
  shown = Block::current().shown_by(lane);
  std::memcpy(&value, &shown, sizeof value);
  return value;
}

inline void require_all_lanes(unsigned lanes) {
  if (lanes != 0xffffffffu) die("only whole warps are emulated", "");
}

}  // namespace emulation

// ---- Operations of warps and blocks ----

inline void __syncthreads() { emulation::Block::current().wait(emulation::Meeting::kBlock, "__syncthreads"); }

inline void __syncwarp() { emulation::Block::current().wait(emulation::Meeting::kWarp, "__syncwarp"); }

inline unsigned __ballot_sync(unsigned lanes, int predicate) {
  emulation::require_all_lanes(lanes);
  emulation::Block::current().show(predicate != 0, "__ballot_sync");
  unsigned ballot = 0;
  for (unsigned lane = 0; lane < emulation::kLanes; ++lane) {
    ballot |= unsigned(emulation::Block::current().shown_by(lane)) << lane;
  }
  return ballot;
}

template <typename T>
T __shfl_sync(unsigned lanes, T value, unsigned source) {
  emulation::require_all_lanes(lanes);
  return emulation::exchange(value, source % emulation::kLanes, "__shfl_sync");
}

template <typename T>
T __shfl_xor_sync(unsigned lanes, T value, unsigned mask) {
  emulation::require_all_lanes(lanes);
  return emulation::exchange(value, threadIdx.x % emulation::kLanes ^ mask, "__shfl_xor_sync");
}

template <typename T>
T __shfl_up_sync(unsigned lanes, T value, unsigned distance) {
  emulation::require_all_lanes(lanes);
  const unsigned lane = threadIdx.x % emulation::kLanes;
  return emulation::exchange(value, lane < distance ? lane : lane - distance, "__shfl_up_sync");
}

template <typename T>
T __shfl_down_sync(unsigned lanes, T value, unsigned distance, unsigned width = emulation::kLanes) {
  emulation::require_all_lanes(lanes);
  const unsigned lane = threadIdx.x % emulation::kLanes;
  const bool inside = lane % width + distance < width;
  return emulation::exchange(value, inside ? lane + distance : lane, "__shfl_down_sync");
}

// ---- Operations of a thread ----

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }

template <typename T>
T atomicAdd(T* address, T value) {
  return std::exchange(*address, *address + value);
}

template <typename T>
T atomicMax(T* address, T value) {
  return std::exchange(*address, std::max(*address, value));
}

template <typename T>
T atomicMin(T* address, T value) {
  return std::exchange(*address, std::min(*address, value));
}

// ---- The host's side ----

using cudaError_t = int;
using cudaStream_t = void*;
constexpr cudaError_t cudaSuccess = 0;

enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount };

inline cudaError_t cudaGetLastError() { return cudaSuccess; }

inline cudaError_t cudaGetDevice(int* device) { return *device = 0; }

inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 2;
  return cudaSuccess;
}

inline const char* cudaGetErrorString(cudaError_t) { return "no error"; }

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
};

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  emulation::run_grid(config->gridDim, config->blockDim, [&] { kernel(arguments...); });
  return cudaSuccess;
}

#endif  // HVD_SPARSE_TESTS_EMULATED_CUDA_RUNTIME_H_
