// What happens to gradients around the selection: parts are summed, contributions travel in messages and meet again.
//
// All results are the same bits under every instruction set and any number of threads. Half and bfloat16 are widened to
// float32 before they are added. Sums of float32 are rounded after each addition; denormal numbers are kept.
#ifndef HVD_SPARSE_OPS_SPARSE_H_
#define HVD_SPARSE_OPS_SPARSE_H_

#include <stdbool.h>
#include <stdint.h>

#include "../common/dtype.h"
#include "../common/parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

// sum[i] = ((p_0[i] + p_1[i]) + ...) + p_{count-1}[i].
//   parts: [count][size] of `dtype`, row after row; count >= 1.
//   sum:   [size]; does not overlap the parts.
// Returns the culprit: 0; 1 + the lowest number of a part that holds a NaN or an infinity; or 1 + count where all parts
// are finite but a sum is not.
int32_t hvds_sum_parts(const void* parts, enum hvds_dtype dtype, int32_t count, int64_t size, float* sum,
                       const hvds_parallel* parallel);

// Whether all elements of x [size] are finite.
bool hvds_all_finite(const float* x, int64_t size, const hvds_parallel* parallel);

// mean[i] = total[i] / divisor, computed in float32 and rounded to the type of mean; returns whether all of it is finite.
//   total: [size] of `dtype`; mean: [size] of `mean_dtype`, and may be total itself where both are of one type.
bool hvds_mean(const void* total, enum hvds_dtype dtype, float divisor, void* mean, enum hvds_dtype mean_dtype,
               int64_t size, const hvds_parallel* parallel);

// vector[i] += addend[i], added in float32 and rounded to the type of the vector; returns whether all of it is finite.
//   addend: [size]; vector: [size] of `dtype`.
bool hvds_add(const float* addend, void* vector, enum hvds_dtype dtype, int64_t size);

// A copy of values [size], size >= 1, whose first one is NaN: it tells those that receive it that they are of no use.
void hvds_mark_nonfinite(const void* values, enum hvds_dtype dtype, int64_t size, void* marked);

// The length in words of 32 bits of a message with this many entries: an index each, and the values, padded to a word.
int64_t hvds_message_words(int64_t count, enum hvds_dtype dtype);

// Writes the indices and then the values' bytes, the last word padded with zeros, into message[hvds_message_words].
void hvds_pack(const void* values, const int32_t* indices, int64_t count, enum hvds_dtype dtype, int32_t* message);

// Takes messages that lie one after the other apart.
//   counts:  [ranks], the entries of each message, none negative.
//   values:  [sum of counts] of `dtype`; indices: the same length.
void hvds_unpack(const int32_t* messages, const int32_t* counts, int64_t ranks, enum hvds_dtype dtype, void* values,
                 int32_t* indices);

// Of ranks that do not know each other's counts: before each message stand its count, and 1 where what it carries is of
// no use as something was not finite, else 0.
#define HVDS_HEADER_WORDS 2

// Reads what stands before each of the messages [words] of `ranks` ranks.
//   counts:    [ranks].
//   nonfinite: whether any rank says so.
// Returns -1, or the first rank whose message does not fit; `ranks` where words are left over.
int64_t hvds_read_counts(const int32_t* messages, int64_t words, int64_t ranks, enum hvds_dtype dtype, int32_t* counts,
                         bool* nonfinite);

// Adds up contributions to a dense vector: float32 sums in the order in which the entries stand, starting from +0, at
// indices - offset; each sum is divided once by `divisor` and rounded to the output's type; all else is +0.
//   values:  [count] of `dtype`; indices: [count], in which an index may occur again. Fastest where they consist of few
//            ascending runs, as those of ranks that each send ascending indices do.
//   dense:   [size] of `dense_dtype`.
// Returns -1, or the position of the first index outside [offset, offset + size); then nothing is written.
int64_t hvds_sparse_sum(const void* values, enum hvds_dtype dtype, const int32_t* indices, int64_t count,
                        int64_t offset, float divisor, void* dense, enum hvds_dtype dense_dtype, int64_t size,
                        const hvds_parallel* parallel);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_SPARSE_H_
