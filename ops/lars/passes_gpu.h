// The passes of passes.h on a CUDA GPU, to the bit; what differs:
//
// Pointers    of the layers, partials, sums and ratios are to memory of the current device, which is the stream's.
// Waiting     is not done, nor is memory allocated: a call queues its kernels on `stream` (a cudaStream_t) and returns.
//             The layers themselves, sizes and rules lie on the host and may go when it has returned.
// Scales      are learning_rate times ratios[number of the layer], as ratios come from the device; those of the layers
//             are not looked at.
// Codes       0, or what lars_gpu_error() puts in words: a bad argument, or an error of CUDA. The first error met ends
//             a call: then nothing, or not everything, was queued.
#ifndef LARS_PASSES_GPU_H_
#define LARS_PASSES_GPU_H_

#include "passes.h"

#ifdef __cplusplus
extern "C" {
#endif

// Rises whenever a function below changes; a caller that loads the library at run time compares it.
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

// sizes lie on the host.
int lars_gpu_layer_sums(const int64_t* sizes, int64_t count, const double* partials, int64_t rows, int64_t columns,
                        double* sums, void* stream);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // LARS_PASSES_GPU_H_
