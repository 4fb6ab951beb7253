// What the parts of the driver share: the memory of "devices", which is the host's, and the log.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#define CALLED_BY_TENSORFLOW extern "C" __attribute__((visibility("default")))

namespace driver {

using Result = int;  // CUresult, cudaError_t, ncclResult_t and the like: 0 is success in all of them
using Address = unsigned long long;

constexpr Result kOutOfMemory = 2, kInvalid = 1, kNotFound = 500, kNotSupported = 801;

// The numbers of the machine's GPUs that a process sees: TRIAL_GPUS many (1), of which CUDA_VISIBLE_DEVICES selects.
const std::vector<int>& gpus();
size_t gpu_memory();  // bytes of each GPU: TRIAL_GPU_GIB (4)

// Writes a line to $TRIAL_LOG.<process>, if that is set.
void note(const char* format, ...) __attribute__((format(printf, 1, 2)));

// New handles for streams, events, modules and whatever else has no content.
template <class Handle>
void give(Handle* handle) {
  static std::atomic<uintptr_t> last{1000};
  *handle = reinterpret_cast<Handle>(++last);
}

// Memory that TensorFlow sees as a device's, or as page-locked on the host. It is zero at first, so that what the
// kernels that do not run would have written is zero.
enum class Kind { kDevice, kPinned };
Result allocate(void** memory, size_t bytes, Kind kind);
Result release(void* memory, Kind kind);
bool contains(Kind kind, const void* address, Address* base = nullptr, size_t* bytes = nullptr);
size_t free_memory();

// Copies, and notes the direction ("H2D"), the bytes, and whether the host's side is page-locked.
Result copy(const char* direction, void* to, const void* from, size_t bytes);
Result fill(void* memory, unsigned char value, size_t bytes);

int attribute(int number);  // of CUdevice_attribute, whose numbers cudaDeviceAttr shares; 0 for those not known here

}  // namespace driver
