// The passes of LARS and LAMB as a library for the CPU.
#include "../../../ops/lars/passes_gpu.cu"
