// How an op library that was compiled without CUDA finds _cuda.so in its own folder and uses the GPU's stream.
#ifndef HVDS_GPU_LIBRARY_OP_H_
#define HVDS_GPU_LIBRARY_OP_H_

#include <dlfcn.h>
#include <unistd.h>

#include <string>

#include "names_op.h"
#include "tensorflow/core/platform/logging.h"
#include "xla/stream_executor/stream.h"

namespace hvds {
// Internal linkage: a function shared by two libraries would return the folder of only one of them.
namespace {

std::string path_beside_this_library(const char* name) {
  Dl_info self;
  if (dladdr(reinterpret_cast<void*>(&path_beside_this_library), &self) == 0) return name;
  const std::string path(self.dli_fname);
  return path.substr(0, path.rfind('/') + 1) + name;
}

template <typename Function>
bool find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

// Fills `functions`, whose find_all(library) returns whether a library has all of them and is of the same build. On
// failure logs why, after `consequence`. A missing _cuda.so is not an error: the installation has no GPU support.
template <typename Functions>
bool load_cuda(const char* consequence, Functions* functions) {
  const std::string path = path_beside_this_library("_cuda.so");
  if (access(path.c_str(), F_OK) != 0) return false;
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    LOG(WARNING) << consequence << ": expected to load " << path << ", got: " << dlerror();
    return false;
  }
  if (functions->find_all(library)) return true;
  LOG(WARNING) << consequence << ": " << path << " does not belong to this _ops.so. Build both anew: "
               << "pip install --force-reinstall --no-deps .";
  dlclose(library);
  return false;
}

stream_executor::Stream* stream_of(OpKernelContext* context) {
  return context->op_device_context()->stream();
}

void* handle_of(OpKernelContext* context) {
  return stream_of(context)->platform_specific_handle().stream;
}

}  // namespace
}  // namespace hvds

#endif  // HVDS_GPU_LIBRARY_OP_H_
