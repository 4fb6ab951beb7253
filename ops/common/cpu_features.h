// Selects the instruction set of the kernels at run time.
#ifndef HVD_SPARSE_OPS_CPU_FEATURES_H_
#define HVD_SPARSE_OPS_CPU_FEATURES_H_

#ifdef __cplusplus
extern "C" {
#endif

enum hvds_isa_level {
  HVDS_SSE2 = 0,    // every x86-64 processor (elsewhere: portable C++)
  HVDS_AVX2 = 1,    // with F16C and BMI1/2
  HVDS_AVX512 = 2,  // F, BW, VL and DQ
};

// The widest level that the processor and the operating system support.
int hvds_isa_detected(void);

// The level in use: initially the detected one, or the one requested by the environment variable HVD_SPARSE_ISA (sse2,
// avx2 or avx512; read once), capped at the detected one.
int hvds_isa(void);

// Prefetch distance of a pass over memory, in bytes, as measured: 2048 suits Intel's processors; AMD's prefetch in
// hardware, and software prefetches far ahead slow them down (Zen 4: by a tenth).
int hvds_bytes_ahead(void);

// Uses `level` from now on, in every thread. Returns 0, or -1 if the processor lacks it or there is no such level.
int hvds_set_isa(int level);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_CPU_FEATURES_H_
