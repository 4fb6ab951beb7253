// Momentum on a CUDA GPU: the functions of momentum.h, with hvds_momentum_gpu_ for hvds_, on device memory.
//
// Arguments and results are those of momentum.h, to the bit; what differs:
// Pointers    are to memory of the current device, which is the stream's: of decay, gain and culprit too, so that the host
//             need not wait for them.
// Waiting     is not done, nor is memory allocated: a call queues its kernels on `stream` (a cudaStream_t) and returns.
// Indices     outside the vector are passed over, as the host does not see them.
// Codes       0, or what hvds_momentum_gpu_error() puts in words: a bad argument, or an error of CUDA.
#ifndef HVD_SPARSE_OPS_MOMENTUM_GPU_H_
#define HVD_SPARSE_OPS_MOMENTUM_GPU_H_

#include <stdint.h>

#include "../common/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

// Rises whenever a function below changes; a caller that loads the library at run time compares it.
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
