// Which instruction set the kernels use, chosen when the program runs.
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

// The widest level that this processor and its operating system offer.
int hvds_isa_detected(void);

// The level in use: at first the detected one, or what the environment variable HVD_SPARSE_ISA (sse2, avx2 or avx512,
// read once) asks for, which never exceeds the detected one.
int hvds_isa(void);

// How far ahead of its loads a pass over memory asks for more, in bytes, as measured: 2048 suits Intel's processors; AMD's
// fetch ahead by themselves, and any request from afar slows them (Zen 4: by a tenth).
int hvds_bytes_ahead(void);

// Uses `level` from now on, in every thread. Returns 0, or -1 when the processor lacks it or there is no such level.
int hvds_set_isa(int level);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_CPU_FEATURES_H_
