// The passes of passes.h on a CUDA GPU, bitwise identical. Differences:
//
// Pointers    of the layers, partials, sums and ratios are to memory of the current device, which is the stream's.
// Waiting     None, and no memory is allocated: a call queues its kernels on `stream` (a cudaStream_t) and returns.
//             The layers themselves, sizes and rules are host memory and may be freed once it has returned.
// Scales      are learning_rate times ratios[number of the layer], as ratios come from the device; the layers' own
//             scales are ignored.
// Codes       0, or a code that lars_gpu_error() describes: a bad argument or a CUDA error. The first error ends a
//             call: then nothing, or only a part, was queued.
#ifndef LARS_PASSES_GPU_H_
#define LARS_PASSES_GPU_H_

#include "passes.h"

#ifdef __cplusplus
extern "C" {
#endif

// Incremented whenever a function below changes; a caller that loads the library at run time compares it.
#define LARS_GPU_INTERFACE 1
int lars_gpu_interface(void);

const char* lars_gpu_error(int code);

int lars_gpu_partials(const lars_layer* layers, int64_t count, int64_t first, int64_t last, double* partials,
                      void* stream);

int lars_gpu_update(const lars_layer* layers, int64_t count, const lars_rule* rule, double learning_rate,
                    const double* ratios, void* stream);

int lamb_gpu_partials(const lars_layer* layers, int64_t count, const lamb_rule* rule, int64_t first, int64_t last,
                      double* partials, void* stream);

int lamb_gpu_update(const lars_layer* layers, int64_t count, const lamb_rule* rule, double learning_rate,
                    const double* ratios, void* stream);

// sizes is host memory.
int lars_gpu_layer_sums(const int64_t* sizes, int64_t count, const double* partials, int64_t rows, int64_t columns,
                        double* sums, void* stream);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // LARS_PASSES_GPU_H_
