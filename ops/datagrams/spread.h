// A randomised Hadamard transform across the segments of a block, so that a lost segment costs a little of many
// elements instead of all of one stretch (as OptiReduce, NSDI 2025).
//
// A block is laid out as n rows of equal length, where n is the largest power of two, at most 64, for which a row is no
// shorter than a segment. In each column every element gets a random sign, and the column's n elements are replaced by
// their sums and differences (the Walsh-Hadamard transform in natural order, not scaled). The inverse is the same
// transform, divided by n, followed by the same signs. The elements after the last row, fewer than n, stay unchanged.
// Losing consecutive segments up to the length of a row costs one of the n coefficients of each column.
#ifndef HVD_SPARSE_OPS_DATAGRAMS_SPREAD_H_
#define HVD_SPARSE_OPS_DATAGRAMS_SPREAD_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// n, for a block of `length` elements.
int64_t hvds_spread_rows(int64_t length, int64_t segment);

// Transforms a block; `from` and `to` may be the same. The bits of the result do not depend on the instruction set.
//   seed: of the signs. Columns are taken in groups of 64; bit j of word `64 group + row` is set if the element of
//         that row in column j of the group changes its sign. Word i is the output of SplitMix64 (Steele et al. 2014)
//         from the state seed + i 0x9e3779b97f4a7c15.
void hvds_spread(const float* from, float* to, int64_t length, int64_t segment, uint64_t seed);
void hvds_gather_up(const float* from, float* to, int64_t length, int64_t segment, uint64_t seed);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_DATAGRAMS_SPREAD_H_
