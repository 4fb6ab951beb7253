// The kernels of rows as a library for the CPU.
#include "../../../ops/pipeline/rows_gpu.cu"
