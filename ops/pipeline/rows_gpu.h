// The largest magnitudes of rows on a CUDA GPU: the functions of rows.h, with hvds_rows_gpu_ for hvds_, on device
// memory.
//
// Arguments and results are those of rows.h, bitwise identical. Differences:
// Pointers    are to memory of the current device, which is the stream's; the shape is read before the call returns.
// Waiting     None, and no memory is allocated: a call queues its kernels on `stream` (a cudaStream_t) and returns.
// Positions   outside a row are skipped, as the host does not see them, and what is gathered there is 0.
// Codes       0, or a code that hvds_rows_gpu_error() describes: a bad argument or a CUDA error.
#ifndef HVD_SPARSE_OPS_ROWS_GPU_H_
#define HVD_SPARSE_OPS_ROWS_GPU_H_

#include "rows.h"

#ifdef __cplusplus
extern "C" {
#endif

// Incremented whenever a function below changes; a caller that loads the library at run time compares it.
#define HVDS_ROWS_GPU_INTERFACE 1
int hvds_rows_gpu_interface(void);

const char* hvds_rows_gpu_error(int code);

int hvds_rows_gpu_largest(const hvds_rows* shape, const void* x, void* y, void* values, void* positions, void* stream);

int hvds_rows_gpu_place(const hvds_rows* shape, const void* values, const void* positions, void* y, void* stream);

int hvds_rows_gpu_gather(const hvds_rows* shape, const void* x, const void* positions, void* values, void* stream);

int hvds_rows_gpu_mask(const hvds_rows* shape, const void* x, const void* positions, void* y, void* stream);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_ROWS_GPU_H_
