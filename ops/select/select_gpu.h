// Selection by magnitude on a CUDA GPU: the functions of select.h, with hvds_gpu_ for hvds_, on device memory.
//
// Arguments and results are those of select.h, to the bit; what differs:
// Pointers    are to memory of the current device, which is the stream's; `report` and `culprit` too. As the host does not
//             see them, the data cannot decide what a function returns.
// Waiting     is not done, nor is memory allocated: a call queues its kernels on `stream` (a cudaStream_t) and returns.
// Workspace   is lent by the caller, aligned to 256 bytes, with any content; until the stream has passed the call it
//             belongs to that alone. The first error met ends a call: then nothing, or not everything, was queued.
// Codes       0, or what hvds_gpu_error() puts in words: a bad argument, or an error of CUDA.
#ifndef HVD_SPARSE_OPS_SELECT_GPU_H_
#define HVD_SPARSE_OPS_SELECT_GPU_H_

#include <stddef.h>
#include <stdint.h>

#include "../common/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

// Rises whenever a function below changes; a caller that loads the library at run time compares it.
#define HVDS_GPU_INTERFACE 1
int hvds_gpu_interface(void);

const char* hvds_gpu_error(int code);

// How large a workspace the functions below need to keep `kept` of `size` elements, 0 <= kept <= size < 2^31.
// mstopk: 0 for the exact functions, 1 for those of MSTopK.
int hvds_gpu_workspace(int64_t size, int64_t kept, int mstopk, size_t* bytes);

int hvds_gpu_topk(const void* x, int dtype, int64_t size, int64_t kept, void* values, int32_t* indices,
                  int64_t* report, void* workspace, size_t workspace_bytes, void* stream);

int hvds_gpu_mstopk(const void* x, int dtype, int64_t size, int64_t kept, int samplings, uint64_t seed, void* values,
                    int32_t* indices, int64_t* report, void* workspace, size_t workspace_bytes, void* stream);

// Fastest where all vectors are aligned to 16 bytes (parts of two bytes an element: to 8), by their stride too.
int hvds_gpu_feedback_topk(const void* parts, int dtype, int64_t count, int64_t stride, const float* residual,
                           int64_t size, int64_t kept, int wire, void* values, int32_t* indices, float* residual_out,
                           int32_t* culprit, void* workspace, size_t workspace_bytes, void* stream);

int hvds_gpu_feedback_mstopk(const void* parts, int dtype, int64_t count, int64_t stride, const float* residual,
                             int64_t size, int64_t kept, int samplings, uint64_t seed, int wire, void* values,
                             int32_t* indices, float* residual_out, int32_t* culprit, void* workspace,
                             size_t workspace_bytes, void* stream);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_SELECT_GPU_H_
