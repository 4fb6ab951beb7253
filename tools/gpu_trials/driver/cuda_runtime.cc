// The CUDA runtime, as libraries with kernels of their own call it; and the other libraries of CUDA that TensorFlow
// opens, as far as it needs them to accept a GPU.
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "common.h"
#include "driver_types.h"

using driver::Kind;
using driver::Result;

namespace {

constexpr int kDriverVersion = 13000, kRuntimeVersion = 12050;

std::mutex mutex;
std::map<const void*, std::string> kernels;  // of the host's function that launches each

std::string name_of(const void* kernel) {
  std::lock_guard<std::mutex> lock(mutex);
  const auto found = kernels.find(kernel);
  return found == kernels.end() ? "?" : found->second;
}

struct Configuration {
  dim3 grid, block;
  size_t shared;
  void* stream;
};
thread_local Configuration configuration;

}  // namespace

// Kernels.
CALLED_BY_TENSORFLOW void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
CALLED_BY_TENSORFLOW void __cudaRegisterFatBinaryEnd(void**) {}
CALLED_BY_TENSORFLOW void __cudaUnregisterFatBinary(void**) {}
CALLED_BY_TENSORFLOW void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, void*, void*,
                                                 void*, void*, int*) {
  std::lock_guard<std::mutex> lock(mutex);
  kernels[host] = name;
}
CALLED_BY_TENSORFLOW void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
CALLED_BY_TENSORFLOW char __cudaInitModule(void**) { return 1; }
CALLED_BY_TENSORFLOW unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
  configuration = {grid, block, shared, stream};
  return 0;
}
CALLED_BY_TENSORFLOW Result __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void** stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  *stream = configuration.stream;
  return 0;
}
CALLED_BY_TENSORFLOW Result cudaLaunchKernel(const void* kernel, dim3, dim3, void**, size_t, void*) {
  return driver::note("launch %.300s", name_of(kernel).c_str()), 0;
}
CALLED_BY_TENSORFLOW Result cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  return 0;
}
CALLED_BY_TENSORFLOW Result cudaFuncSetAttribute(const void*, int, int) { return 0; }
CALLED_BY_TENSORFLOW Result cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  return *blocks = 2, 0;
}
CALLED_BY_TENSORFLOW Result cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int,
                                                                                  size_t, unsigned) {
  return *blocks = 2, 0;
}

// Devices and errors.
CALLED_BY_TENSORFLOW Result cudaGetLastError() { return 0; }
CALLED_BY_TENSORFLOW Result cudaPeekAtLastError() { return 0; }
CALLED_BY_TENSORFLOW const char* cudaGetErrorString(int) { return "an error of the trial"; }
CALLED_BY_TENSORFLOW const char* cudaGetErrorName(int) { return "trialError"; }
CALLED_BY_TENSORFLOW Result cudaGetDevice(int* device) { return *device = 0, 0; }
CALLED_BY_TENSORFLOW Result cudaSetDevice(int) { return 0; }
CALLED_BY_TENSORFLOW Result cudaGetDeviceCount(int* count) { return *count = driver::gpus().size(), 0; }
CALLED_BY_TENSORFLOW Result cudaDriverGetVersion(int* version) { return *version = kDriverVersion, 0; }
CALLED_BY_TENSORFLOW Result cudaRuntimeGetVersion(int* version) { return *version = kRuntimeVersion, 0; }
CALLED_BY_TENSORFLOW Result cudaDeviceGetAttribute(int* value, int number, int) {
  return *value = driver::attribute(number), 0;
}
CALLED_BY_TENSORFLOW Result cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return 0;
}

CALLED_BY_TENSORFLOW Result cudaGetDeviceProperties_v2(cudaDeviceProp* properties, int device) {
  *properties = {};
  snprintf(properties->name, sizeof properties->name, "Trial GPU %d", driver::gpus()[device]);
  properties->totalGlobalMem = driver::gpu_memory();
  properties->major = driver::attribute(75);
  properties->multiProcessorCount = driver::attribute(16);
  properties->warpSize = driver::attribute(10);
  properties->maxThreadsPerBlock = driver::attribute(1);
  properties->maxThreadsPerMultiProcessor = driver::attribute(39);
  properties->maxBlocksPerMultiProcessor = driver::attribute(106);
  properties->sharedMemPerBlock = driver::attribute(8);
  properties->sharedMemPerBlockOptin = driver::attribute(97);
  properties->sharedMemPerMultiprocessor = driver::attribute(81);
  properties->regsPerBlock = driver::attribute(12);
  properties->regsPerMultiprocessor = driver::attribute(82);
  properties->totalConstMem = driver::attribute(9);
  properties->l2CacheSize = driver::attribute(38);
  properties->asyncEngineCount = driver::attribute(40);
  properties->concurrentKernels = properties->unifiedAddressing = 1;
  for (int axis = 0; axis < 3; ++axis) {
    properties->maxThreadsDim[axis] = driver::attribute(2 + axis);
    properties->maxGridSize[axis] = driver::attribute(5 + axis);
  }
  return 0;
}

// Memory.
CALLED_BY_TENSORFLOW Result cudaMalloc(void** memory, size_t bytes) {
  return driver::allocate(memory, bytes, Kind::kDevice);
}
CALLED_BY_TENSORFLOW Result cudaFree(void* memory) { return memory ? driver::release(memory, Kind::kDevice) : 0; }
CALLED_BY_TENSORFLOW Result cudaMemGetInfo(size_t* available, size_t* total) {
  *total = driver::gpu_memory();
  *available = driver::free_memory();
  return 0;
}
CALLED_BY_TENSORFLOW Result cudaMemcpy(void* to, const void* from, size_t bytes, int kind) {
  static const char* directions[] = {"H2H", "H2D", "D2H", "D2D"};
  if (kind >= 0 && kind < 4) return driver::copy(directions[kind], to, from, bytes);
  const bool out = driver::contains(Kind::kDevice, from), in = driver::contains(Kind::kDevice, to);
  return driver::copy(directions[2 * out + in], to, from, bytes);
}
CALLED_BY_TENSORFLOW Result cudaMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void*) {
  return cudaMemcpy(to, from, bytes, kind);
}
CALLED_BY_TENSORFLOW Result cudaMemsetAsync(void* memory, int value, size_t bytes, void*) {
  return driver::fill(memory, static_cast<unsigned char>(value), bytes);
}
CALLED_BY_TENSORFLOW Result cudaHostGetFlags(unsigned*, void*) { return driver::kInvalid; }
CALLED_BY_TENSORFLOW Result cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  *attributes = {};
  const bool device = driver::contains(Kind::kDevice, address);
  attributes->type = device ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  return 0;
}

// Streams and events.
CALLED_BY_TENSORFLOW Result cudaStreamCreate(void** stream) { return driver::give(stream), 0; }
CALLED_BY_TENSORFLOW Result cudaStreamCreateWithPriority(void** stream, unsigned, int) {
  return driver::give(stream), 0;
}
CALLED_BY_TENSORFLOW Result cudaStreamSynchronize(void*) { return driver::note("synchronize stream"), 0; }
CALLED_BY_TENSORFLOW Result cudaStreamQuery(void*) { return 0; }
CALLED_BY_TENSORFLOW Result cudaStreamWaitEvent(void*, void*, unsigned) { return 0; }
CALLED_BY_TENSORFLOW Result cudaDeviceSynchronize() { return driver::note("synchronize device"), 0; }
CALLED_BY_TENSORFLOW Result cudaEventCreate(void** event) { return driver::give(event), 0; }
CALLED_BY_TENSORFLOW Result cudaEventCreateWithFlags(void** event, unsigned) { return driver::give(event), 0; }
CALLED_BY_TENSORFLOW Result cudaEventRecord(void*, void*) { return 0; }
CALLED_BY_TENSORFLOW Result cudaEventSynchronize(void*) { return 0; }
CALLED_BY_TENSORFLOW Result cudaEventQuery(void*) { return 0; }
CALLED_BY_TENSORFLOW Result cudaEventDestroy(void*) { return 0; }
CALLED_BY_TENSORFLOW Result cudaEventElapsedTime(float* ms, void*, void*) { return *ms = 0.001f, 0; }

// Other libraries of CUDA.
CALLED_BY_TENSORFLOW size_t cudnnGetVersion() { return 90300; }
CALLED_BY_TENSORFLOW const char* cudnnGetErrorString(int) { return "an error of the trial"; }
CALLED_BY_TENSORFLOW Result cudnnCreate(void** handle) { return driver::give(handle), 0; }
CALLED_BY_TENSORFLOW Result cublasCreate_v2(void** handle) { return driver::give(handle), 0; }
CALLED_BY_TENSORFLOW Result cublasLtCreate(void** handle) { return driver::give(handle), 0; }
CALLED_BY_TENSORFLOW Result cublasGetVersion_v2(void*, int* version) { return *version = 120500, 0; }
CALLED_BY_TENSORFLOW Result nvmlInit() { return 0; }
CALLED_BY_TENSORFLOW Result nvmlInit_v2() { return 0; }
CALLED_BY_TENSORFLOW Result nvmlDeviceGetCount_v2(unsigned* count) { return *count = driver::gpus().size(), 0; }
CALLED_BY_TENSORFLOW Result nvmlDeviceGetHandleByIndex_v2(unsigned, void** device) { return driver::give(device), 0; }
CALLED_BY_TENSORFLOW Result nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) {
  return driver::give(device), 0;
}
CALLED_BY_TENSORFLOW Result nvmlSystemGetDriverVersion(char* version, unsigned size) {
  return snprintf(version, size, "580.00"), 0;
}
