// The kernels of momentum as a library for the CPU.
#include "../../../ops/momentum/momentum_gpu.cu"
