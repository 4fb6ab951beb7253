// Values coded by their sign and one of a few magnitudes, for use after gradient dropping (Aji and Heafield 2017, 5.4).
//
// With one bit a value becomes its sign times the magnitude of its column; with two bits, its sign times the smaller or
// the larger magnitude of that sign. Zeros are coded as positive. Sums are float64, so that they do not overflow, and
// the mean of equal magnitudes, up to 2^29 of them, is that magnitude; it is rounded to float32 once. Sums of one bit
// are in the order of the values; those of two bits in 16 lanes (lane = i mod 16), which are then folded by halves. The
// first of the codes that share a byte is in its lowest bits; a last byte that is not full is padded with zeros.
//
// All work is serial, so the bits do not depend on the number of threads.
#ifndef HVD_SPARSE_OPS_MAGNITUDES_H_
#define HVD_SPARSE_OPS_MAGNITUDES_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum hvds_magnitude {
  HVDS_MAGNITUDE_LEAST = 0,  // the smallest that is not zero; zero if there is none
  HVDS_MAGNITUDE_MEAN = 1,   // of all magnitudes, including zeros
};

#define HVDS_TWO_BITS_SCALES 4

// The matrices that make up a vector, one after another. Element i of matrix m is in column (starts[m] + i - begin) %
// columns[m], where begin is the end of the preceding matrix.
typedef struct hvds_matrices {
  int64_t count;
  const int64_t* ends;  // in the vector, ascending
  const int64_t* starts;
  const int64_t* columns;  // at least 1
} hvds_matrices;

// The number of columns of all matrices together.
int64_t hvds_columns(const hvds_matrices* matrices);

// Numbers the columns that hold any of these elements, in order, matrix by matrix.
//   indices: [count], in the vector; fastest if ascending.
//   numbers: [count], the number of each element's column.
//   scratch: [hvds_columns].
// Returns the number of columns that hold any, or -1 - the position of the first index outside all matrices.
int64_t hvds_number_columns(const int32_t* indices, int64_t count, const hvds_matrices* matrices, int32_t* numbers,
                            int32_t* scratch);

// One bit per value: whether it is negative.
//   columns: [count], in [0, scale_count), or NULL if all values are in column 0.
//   codes:   [(count + 7) / 8].
//   scales:  [scale_count], the magnitude of each column; 0 for an empty column.
//   scratch: [2 * scale_count].
// Returns -1, or the position of the first value that is a NaN or an infinity; then the outputs must not be used.
int64_t hvds_one_bit(const float* values, const int32_t* columns, int64_t count, enum hvds_magnitude magnitude,
                     int64_t scale_count, uint8_t* codes, float* scales, double* scratch);

void hvds_from_one_bit(const uint8_t* codes, const float* scales, const int32_t* columns, int64_t count, float* values);

// Two bits per value: whether it is negative, and above that whether its magnitude exceeds the split of its sign. The
// split starts as the mean of the sign's magnitudes, and is then moved four times to the midpoint between the means of
// the two parts (Lloyd 1982); each move can only reduce the squared error, which stays in the residual. Of more than
// 2^14 values every n-th is looked at for this, the least n for which these are at most 2^14.
//   codes:  [(count + 3) / 4].
//   scales: [4], for each code the mean magnitude of its values; 0 if there are none.
// Returns as hvds_one_bit.
int64_t hvds_two_bits(const float* values, int64_t count, uint8_t* codes, float* scales);

void hvds_from_two_bits(const uint8_t* codes, const float* scales, int64_t count, float* values);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_MAGNITUDES_H_
