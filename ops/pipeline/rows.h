// The largest magnitudes of each row of a matrix, and rows that are zero except at given positions (DCT 2.2, Algorithm
// 2).
//
// Elements are float32, half or bfloat16, and keep their bits. Magnitudes are compared exactly, as the bits without the
// sign: a NaN counts as larger than all numbers, so that it is never hidden, and 0.0 and -0.0 are equal. The results
// are the same under every instruction set and any number of threads.
//
// Matrices are [rows, width], row after row. Positions are [rows, kept], relative to their row, in ascending order:
// uint16 if `narrow` is not 0, which requires a width of at most 65536, else int32. Nothing overlaps.
#ifndef HVD_SPARSE_OPS_ROWS_H_
#define HVD_SPARSE_OPS_ROWS_H_

#include <stdint.h>

#include "../common/dtype.h"
#include "../common/parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hvds_rows {
  enum hvds_dtype dtype;
  int64_t rows;
  int64_t width;  // at most 2^31 - 1
  int64_t kept;   // per row; at most width
  int32_t narrow;
} hvds_rows;

// y = x where x is among the `kept` largest magnitudes of its row, else 0; of equal magnitudes those at the lowest
// positions are kept. y, values or both may be NULL. values: [rows, kept]. Returns 0, or -1 if there is not enough
// memory.
int hvds_largest_rows(const hvds_rows* shape, const void* x, void* y, void* values, void* positions,
                      const hvds_parallel* parallel);

// The functions below return -1 on success; -2 if there is not enough memory; or the number of the first row whose
// positions do not ascend or are outside [0, width): then what they wrote must not be used.

// y = the values at their positions, else 0. values: [rows, kept].
int64_t hvds_place_rows(const hvds_rows* shape, const void* values, const void* positions, void* y,
                        const hvds_parallel* parallel);

// values = x at the positions. values: [rows, kept].
int64_t hvds_gather_rows(const hvds_rows* shape, const void* x, const void* positions, void* values,
                         const hvds_parallel* parallel);

// y = x at the positions, else 0.
int64_t hvds_mask_rows(const hvds_rows* shape, const void* x, const void* positions, void* y,
                       const hvds_parallel* parallel);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_ROWS_H_
