// The CUDA driver (libcuda): devices, memory, contexts, streams and events. What is queued runs at once, and kernels
// that are launched do nothing.
#include <dlfcn.h>

#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "common.h"

using driver::Address;
using driver::Kind;
using driver::Result;

namespace {

constexpr int kVersion = 13000;

void* at(Address address) { return reinterpret_cast<void*>(address); }

// Runs what a stream calls on the host, in order, in a thread of its own, as a driver does.
class Callbacks {
 public:
  static Callbacks& all() {
    static auto* callbacks = new Callbacks;
    return *callbacks;
  }

  void add(std::function<void()> call) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      waiting_.push_back(std::move(call));
    }
    added_.notify_one();
  }

 private:
  Callbacks() {
    std::thread([this] { run(); }).detach();
  }

  [[noreturn]] void run() {
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      added_.wait(lock, [this] { return !waiting_.empty(); });
      const auto call = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      call();
    }
  }

  std::mutex mutex_;
  std::condition_variable added_;
  std::deque<std::function<void()>> waiting_;
};

char context;  // the only one
thread_local void* current = nullptr;

Result set_context(void* other) {
  current = other;
  return 0;
}

Result get_context(void** other) {
  if (other) *other = current;
  return 0;
}

}  // namespace

// Devices.
CALLED_BY_TENSORFLOW Result cuInit(unsigned) { return 0; }
CALLED_BY_TENSORFLOW Result cuDriverGetVersion(int* version) { return *version = kVersion, 0; }
CALLED_BY_TENSORFLOW Result cuDeviceGetCount(int* count) { return *count = static_cast<int>(driver::gpus().size()), 0; }
CALLED_BY_TENSORFLOW Result cuDeviceGet(int* device, int number) { return *device = number, 0; }
CALLED_BY_TENSORFLOW Result cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = driver::gpu_memory(), 0; }
CALLED_BY_TENSORFLOW Result cuDeviceCanAccessPeer(int* can, int, int) { return *can = 0, 0; }
CALLED_BY_TENSORFLOW Result cuDeviceGetUuid_v2(void* uuid, int device) {
  return memset(uuid, driver::gpus()[device] + 1, 16), 0;
}
CALLED_BY_TENSORFLOW Result cuDeviceGetUuid(void* uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }

CALLED_BY_TENSORFLOW Result cuDeviceGetName(char* name, int size, int device) {
  return snprintf(name, size, "Trial GPU %d", driver::gpus()[device]), 0;
}

CALLED_BY_TENSORFLOW Result cuDeviceGetPCIBusId(char* bus, int size, int device) {
  return snprintf(bus, size, "0000:%02x:00.0", driver::gpus()[device] + 1), 0;
}

CALLED_BY_TENSORFLOW Result cuDeviceComputeCapability(int* major, int* minor, int) {
  *major = driver::attribute(75);
  *minor = driver::attribute(76);
  return 0;
}

CALLED_BY_TENSORFLOW Result cuDeviceGetAttribute(int* value, int number, int) {
  return *value = driver::attribute(number), 0;
}

// Memory.
CALLED_BY_TENSORFLOW Result cuMemAlloc_v2(void** memory, size_t bytes) {
  return driver::allocate(memory, bytes, Kind::kDevice);
}
CALLED_BY_TENSORFLOW Result cuMemAllocAsync(void** memory, size_t bytes, void*) { return cuMemAlloc_v2(memory, bytes); }
CALLED_BY_TENSORFLOW Result cuMemAllocFromPoolAsync(void** memory, size_t bytes, void*, void*) {
  return cuMemAlloc_v2(memory, bytes);
}
CALLED_BY_TENSORFLOW Result cuMemFree_v2(Address memory) { return driver::release(at(memory), Kind::kDevice); }
CALLED_BY_TENSORFLOW Result cuMemFreeAsync(Address memory, void*) { return cuMemFree_v2(memory); }
CALLED_BY_TENSORFLOW Result cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  return driver::allocate(memory, bytes, Kind::kPinned);
}
CALLED_BY_TENSORFLOW Result cuMemAllocHost_v2(void** memory, size_t bytes) { return cuMemHostAlloc(memory, bytes, 0); }
CALLED_BY_TENSORFLOW Result cuMemFreeHost(void* memory) { return driver::release(memory, Kind::kPinned); }
CALLED_BY_TENSORFLOW Result cuMemHostRegister_v2(void*, size_t, unsigned) { return 0; }
CALLED_BY_TENSORFLOW Result cuMemHostUnregister(void*) { return 0; }
CALLED_BY_TENSORFLOW Result cuMemHostGetDevicePointer_v2(void** device, void* host, unsigned) {
  return *device = host, 0;
}

CALLED_BY_TENSORFLOW Result cuMemGetInfo_v2(size_t* available, size_t* total) {
  *total = driver::gpu_memory();
  *available = driver::free_memory();
  return 0;
}

CALLED_BY_TENSORFLOW Result cuMemGetAddressRange_v2(Address* base, size_t* bytes, Address address) {
  return driver::contains(Kind::kDevice, at(address), base, bytes) ? 0 : driver::kInvalid;
}

CALLED_BY_TENSORFLOW Result cuPointerGetAttribute(void* value, int number, Address address) {
  constexpr int kMemoryType = 2, kDeviceOrdinal = 9;
  constexpr unsigned kHost = 1, kDevice = 2;
  if (number == kMemoryType) {
    *static_cast<unsigned*>(value) = driver::contains(Kind::kDevice, at(address)) ? kDevice : kHost;
  } else if (number == kDeviceOrdinal) {
    *static_cast<int*>(value) = 0;
  } else {
    *static_cast<Address*>(value) = address;
  }
  return 0;
}

CALLED_BY_TENSORFLOW Result cuDeviceGetDefaultMemPool(void** pool, int) { return driver::give(pool), 0; }
CALLED_BY_TENSORFLOW Result cuMemPoolCreate(void** pool, const void*) { return driver::give(pool), 0; }
CALLED_BY_TENSORFLOW Result cuMemPoolDestroy(void*) { return 0; }
CALLED_BY_TENSORFLOW Result cuMemPoolSetAttribute(void*, int, void*) { return 0; }
CALLED_BY_TENSORFLOW Result cuMemPoolGetAttribute(void*, int, void* value) {
  return *static_cast<unsigned long long*>(value) = 0, 0;
}
CALLED_BY_TENSORFLOW Result cuMemPoolSetAccess(void*, const void*, size_t) { return 0; }
CALLED_BY_TENSORFLOW Result cuMemPoolTrimTo(void*, size_t) { return 0; }

CALLED_BY_TENSORFLOW Result cuMemcpyHtoD_v2(Address to, const void* from, size_t bytes) {
  return driver::copy("H2D", at(to), from, bytes);
}
CALLED_BY_TENSORFLOW Result cuMemcpyDtoH_v2(void* to, Address from, size_t bytes) {
  return driver::copy("D2H", to, at(from), bytes);
}
CALLED_BY_TENSORFLOW Result cuMemcpyDtoD_v2(Address to, Address from, size_t bytes) {
  return driver::copy("D2D", at(to), at(from), bytes);
}
CALLED_BY_TENSORFLOW Result cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, void*) {
  return cuMemcpyHtoD_v2(to, from, bytes);
}
CALLED_BY_TENSORFLOW Result cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, void*) {
  return cuMemcpyDtoH_v2(to, from, bytes);
}
CALLED_BY_TENSORFLOW Result cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void*) {
  return cuMemcpyDtoD_v2(to, from, bytes);
}
CALLED_BY_TENSORFLOW Result cuMemsetD8_v2(Address to, unsigned char value, size_t bytes) {
  return driver::fill(at(to), value, bytes);
}
CALLED_BY_TENSORFLOW Result cuMemsetD8Async(Address to, unsigned char value, size_t bytes, void*) {
  return cuMemsetD8_v2(to, value, bytes);
}
CALLED_BY_TENSORFLOW Result cuMemsetD32_v2(Address to, unsigned value, size_t count) {
  driver::note("fill %zu", 4 * count);
  std::fill_n(static_cast<unsigned*>(at(to)), count, value);
  return 0;
}
CALLED_BY_TENSORFLOW Result cuMemsetD32Async(Address to, unsigned value, size_t count, void*) {
  return cuMemsetD32_v2(to, value, count);
}

// Contexts.
CALLED_BY_TENSORFLOW Result cuDevicePrimaryCtxRetain(void** other, int) { return *other = &context, 0; }
CALLED_BY_TENSORFLOW Result cuDevicePrimaryCtxRelease_v2(int) { return 0; }
CALLED_BY_TENSORFLOW Result cuDevicePrimaryCtxSetFlags_v2(int, unsigned) { return 0; }
CALLED_BY_TENSORFLOW Result cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return 0;
}
CALLED_BY_TENSORFLOW Result cuCtxSetCurrent(void* other) { return set_context(other); }
CALLED_BY_TENSORFLOW Result cuCtxPushCurrent_v2(void* other) { return set_context(other); }
CALLED_BY_TENSORFLOW Result cuCtxGetCurrent(void** other) { return get_context(other); }
CALLED_BY_TENSORFLOW Result cuCtxPopCurrent_v2(void** other) { return get_context(other); }
CALLED_BY_TENSORFLOW Result cuCtxGetDevice(int* device) { return *device = 0, 0; }
CALLED_BY_TENSORFLOW Result cuCtxGetId(void*, unsigned long long* id) { return *id = 1, 0; }
CALLED_BY_TENSORFLOW Result cuCtxGetApiVersion(void*, unsigned* version) { return *version = kVersion, 0; }
CALLED_BY_TENSORFLOW Result cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return 0;
}
CALLED_BY_TENSORFLOW Result cuCtxSynchronize() { return driver::note("synchronize context"), 0; }

// Streams and events.
CALLED_BY_TENSORFLOW Result cuStreamCreate(void** stream, unsigned) { return driver::give(stream), 0; }
CALLED_BY_TENSORFLOW Result cuStreamCreateWithPriority(void** stream, unsigned, int) {
  return driver::give(stream), 0;
}
CALLED_BY_TENSORFLOW Result cuStreamDestroy_v2(void*) { return 0; }
CALLED_BY_TENSORFLOW Result cuStreamQuery(void*) { return 0; }
CALLED_BY_TENSORFLOW Result cuStreamSynchronize(void*) { return driver::note("synchronize stream"), 0; }
CALLED_BY_TENSORFLOW Result cuStreamWaitEvent(void*, void*, unsigned) { return 0; }
CALLED_BY_TENSORFLOW Result cuStreamIsCapturing(void*, int* captures) { return *captures = 0, 0; }
CALLED_BY_TENSORFLOW Result cuStreamGetPriority(void*, int* priority) { return *priority = 0, 0; }
CALLED_BY_TENSORFLOW Result cuEventCreate(void** event, unsigned) { return driver::give(event), 0; }
CALLED_BY_TENSORFLOW Result cuEventDestroy_v2(void*) { return 0; }
CALLED_BY_TENSORFLOW Result cuEventRecord(void*, void*) { return 0; }
CALLED_BY_TENSORFLOW Result cuEventQuery(void*) { return 0; }
CALLED_BY_TENSORFLOW Result cuEventSynchronize(void*) { return 0; }
CALLED_BY_TENSORFLOW Result cuEventElapsedTime(float* ms, void*, void*) { return *ms = 0.001f, 0; }
CALLED_BY_TENSORFLOW Result cuEventElapsedTime_v2(float* ms, void*, void*) { return *ms = 0.001f, 0; }
CALLED_BY_TENSORFLOW Result cuLaunchHostFunc(void*, void (*call)(void*), void* argument) {
  return Callbacks::all().add([=] { call(argument); }), 0;
}
CALLED_BY_TENSORFLOW Result cuStreamAddCallback(void* stream, void (*call)(void*, int, void*), void* argument,
                                                unsigned) {
  return Callbacks::all().add([=] { call(stream, 0, argument); }), 0;
}

// Kernels.
CALLED_BY_TENSORFLOW Result cuModuleLoadData(void** module, const void*) { return driver::give(module), 0; }
CALLED_BY_TENSORFLOW Result cuModuleLoadDataEx(void** module, const void*, unsigned, void*, void*) {
  return driver::give(module), 0;
}
CALLED_BY_TENSORFLOW Result cuModuleUnload(void*) { return 0; }
CALLED_BY_TENSORFLOW Result cuModuleGetFunction(void** function, void*, const char* name) {
  return *function = strdup(name), 0;
}
CALLED_BY_TENSORFLOW Result cuFuncGetAttribute(int* value, int, void*) { return *value = 0, 0; }
CALLED_BY_TENSORFLOW Result cuFuncSetAttribute(void*, int, int) { return 0; }
CALLED_BY_TENSORFLOW Result cuLaunchKernel(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                           unsigned, void*, void**, void**) {
  return driver::note("launch %s", static_cast<const char*>(function)), 0;
}

// Errors, and the functions by name.
CALLED_BY_TENSORFLOW Result cuGetErrorName(int, const char** name) { return *name = "TRIAL_ERROR", 0; }
CALLED_BY_TENSORFLOW Result cuGetErrorString(int, const char** text) { return *text = "an error of the trial", 0; }
CALLED_BY_TENSORFLOW Result cuGetProcAddress_v2(const char* name, void** function, int, unsigned long long,
                                                int* found) {
  *function = dlsym(RTLD_DEFAULT, name);
  if (found) *found = *function ? 0 : 1;
  return *function ? 0 : driver::kNotFound;
}
