// Values coded by their sign and one of few magnitudes, as behind gradient dropping (Aji and Heafield 2017, 5.4).
//
// With one bit a value becomes its sign times the magnitude of its column, with two bits times the smaller or the larger
// magnitude of its sign. Zeros are coded as positive. Sums are float64 in the order of the values, so that they overflow
// nowhere, and the mean of equal magnitudes, up to 2^29 of them, is that magnitude; it is rounded to float32 once. The
// first of the codes that share a byte is in its lowest bits, and a last byte that is not full is filled up with zeros.
//
// All work is serial, and so the bits do not depend on the number of threads.
#ifndef HVD_SPARSE_OPS_MAGNITUDES_H_
#define HVD_SPARSE_OPS_MAGNITUDES_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum hvds_magnitude {
  HVDS_MAGNITUDE_LEAST = 0,  // the smallest that is not zero; zero where there is none
  HVDS_MAGNITUDE_MEAN = 1,   // of all magnitudes, those of zeros among them
};

#define HVDS_TWO_BITS_SCALES 4

// The matrices of which a vector consists, one after another. An element at i of matrix number m is in its column
// (starts[m] + i - begin) % columns[m], where begin is the end of the matrix before.
typedef struct hvds_matrices {
  int64_t count;
  const int64_t* ends;  // in the vector, ascending
  const int64_t* starts;
  const int64_t* columns;  // at least 1
} hvds_matrices;

// The columns of all matrices together.
int64_t hvds_columns(const hvds_matrices* matrices);

// Numbers the columns that hold any of these elements, in order, matrix by matrix.
//   indices: [count], in the vector; fastest where they ascend.
//   numbers: [count], that of each element's column.
//   scratch: [hvds_columns].
// Returns how many columns hold any, or -1 - the position of the first index outside of all matrices.
int64_t hvds_number_columns(const int32_t* indices, int64_t count, const hvds_matrices* matrices, int32_t* numbers,
                            int32_t* scratch);

// One bit a value: whether it is negative.
//   columns: [count], in [0, scale_count), or NULL where all values are in column 0.
//   codes:   [(count + 7) / 8].
//   scales:  [scale_count], the magnitude of each column; 0 of one that holds nothing.
//   scratch: [2 * scale_count].
// Returns -1, or the position of the first value that is a NaN or an infinity; then nothing is of use.
int64_t hvds_one_bit(const float* values, const int32_t* columns, int64_t count, enum hvds_magnitude magnitude,
                     int64_t scale_count, uint8_t* codes, float* scales, double* scratch);

void hvds_from_one_bit(const uint8_t* codes, const float* scales, const int32_t* columns, int64_t count, float* values);

// Two bits a value: whether it is negative, and above it whether its magnitude exceeds the split of its sign. That is at
// first the mean of the sign's magnitudes, and then four times midway between the means of the two parts (Lloyd 1982):
// each time the squared error, which stays in the residual, can only become less.
//   codes:  [(count + 3) / 4].
//   scales: [4], for each code the mean magnitude of its values; 0 where there is none.
// Returns as hvds_one_bit.
int64_t hvds_two_bits(const float* values, int64_t count, uint8_t* codes, float* scales);

void hvds_from_two_bits(const uint8_t* codes, const float* scales, int64_t count, float* values);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_MAGNITUDES_H_
