// Selection by magnitude on a CUDA GPU: the functions of select.h, with hvds_gpu_ for hvds_, on device memory.
//
// Arguments and results are those of select.h, bitwise identical. Differences:
// Pointers    are to memory of the current device, which is the stream's, including `report` and `culprit`. As the host
//             does not see the data, they cannot affect what a function returns.
// Waiting     None, and no memory is allocated: a call queues its kernels on `stream` (a cudaStream_t) and returns.
// Workspace   is lent by the caller, aligned to 256 bytes, with any contents; until the stream has completed the call,
//             nothing else may use it. The first error ends a call: then nothing, or only a part, was queued.
// Codes       0, or a code that hvds_gpu_error() describes: a bad argument or a CUDA error.
#ifndef HVD_SPARSE_OPS_SELECT_GPU_H_
#define HVD_SPARSE_OPS_SELECT_GPU_H_

#include <stddef.h>
#include <stdint.h>

#include "../common/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

// Incremented whenever a function below changes; a caller that loads the library at run time compares it.
#define HVDS_GPU_INTERFACE 1
int hvds_gpu_interface(void);

const char* hvds_gpu_error(int code);

// The size of the workspace that the functions below need to keep `kept` of `size` elements, 0 <= kept <= size < 2^31.
// mstopk: 0 for the exact functions, 1 for those of MSTopK.
int hvds_gpu_workspace(int64_t size, int64_t kept, int mstopk, size_t* bytes);

int hvds_gpu_topk(const void* x, int dtype, int64_t size, int64_t kept, void* values, int32_t* indices,
                  int64_t* report, void* workspace, size_t workspace_bytes, void* stream);

int hvds_gpu_mstopk(const void* x, int dtype, int64_t size, int64_t kept, int samplings, uint64_t seed, void* values,
                    int32_t* indices, int64_t* report, void* workspace, size_t workspace_bytes, void* stream);

// Fastest if all vectors are aligned to 16 bytes (parts with two-byte elements: to 8), including their stride.
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
