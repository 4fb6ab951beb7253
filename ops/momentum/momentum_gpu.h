// Momentum on a CUDA GPU: the functions of momentum.h, with hvds_momentum_gpu_ for hvds_, on device memory.
//
// Arguments and results are those of momentum.h, bitwise identical. Differences:
// Pointers    are to memory of the current device, which is the stream's, including decay, gain and culprit, so that
// the
//             host need not wait for them.
// Waiting     None, and no memory is allocated: a call queues its kernels on `stream` (a cudaStream_t) and returns.
// Indices     outside the vector are skipped, as the host does not see them.
// Codes       0, or a code that hvds_momentum_gpu_error() describes: a bad argument or a CUDA error.
#ifndef HVD_SPARSE_OPS_MOMENTUM_GPU_H_
#define HVD_SPARSE_OPS_MOMENTUM_GPU_H_

#include <stdint.h>

#include "../common/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

// Incremented whenever a function below changes; a caller that loads the library at run time compares it.
#define HVDS_MOMENTUM_GPU_INTERFACE 1
int hvds_momentum_gpu_interface(void);

const char* hvds_momentum_gpu_error(int code);

int hvds_momentum_gpu_advance(const void* parts, int dtype, int64_t count, int64_t size, const float* velocity,
                              const float* decay, const float* gain, float* velocity_out, float* moves,
                              int32_t* culprit, void* stream);

int hvds_momentum_gpu_clear(const float* vector, int64_t size, const int32_t* indices, int64_t count, float* cleared,
                            void* stream);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_MOMENTUM_GPU_H_
