// The element types of the kernels' inputs and outputs.
#ifndef HVD_SPARSE_OPS_DTYPE_H_
#define HVD_SPARSE_OPS_DTYPE_H_

enum hvds_dtype {
  HVDS_FLOAT32 = 0,
  HVDS_FLOAT16 = 1,   // IEEE binary16; rounds to nearest even, overflows to Inf
  HVDS_BFLOAT16 = 2,  // the upper half of a float32; rounds to nearest even
  HVDS_FLOAT64 = 3,   // sparse streams only
};

#endif  // HVD_SPARSE_OPS_DTYPE_H_
