// What happens to gradients around the selection: parts are summed, contributions are packed into messages, and
// received contributions are added up.
//
// All results are bitwise identical under every instruction set and any number of threads. Half and bfloat16 are
// widened to float32 before they are added. Float32 sums are rounded after each addition; denormal numbers are kept.
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
// Returns the culprit: 0; 1 + the lowest number of a part that holds a NaN or an infinity; or 1 + count if all parts
// are finite but a sum is not.
int32_t hvds_sum_parts(const void* parts, enum hvds_dtype dtype, int32_t count, int64_t size, float* sum,
                       const hvds_parallel* parallel);

// Whether all elements of x [size] are finite.
bool hvds_all_finite(const float* x, int64_t size, const hvds_parallel* parallel);

// mean[i] = total[i] / divisor, computed in float32 and rounded to the type of mean; returns whether every element is
// finite.
//   total: [size] of `dtype`; mean: [size] of `mean_dtype`, and may be total itself if both have the same type.
bool hvds_mean(const void* total, enum hvds_dtype dtype, float divisor, void* mean, enum hvds_dtype mean_dtype,
               int64_t size, const hvds_parallel* parallel);

// vector[i] += addend[i], added in float32 and rounded to the type of the vector; returns whether every element is
// finite.
//   addend: [size]; vector: [size] of `dtype`.
bool hvds_add(const float* addend, void* vector, enum hvds_dtype dtype, int64_t size);

// Copies values [size], size >= 1, with NaN as the first one: it tells the receivers that the values must not be used.
void hvds_mark_nonfinite(const void* values, enum hvds_dtype dtype, int64_t size, void* marked);

// The length, in 32-bit words, of a message with this many entries: an index each, and the values, padded to a word.
int64_t hvds_message_words(int64_t count, enum hvds_dtype dtype);

// Writes the indices and then the values' bytes, the last word padded with zeros, into message[hvds_message_words].
void hvds_pack(const void* values, const int32_t* indices, int64_t count, enum hvds_dtype dtype, int32_t* message);

// Splits messages that lie one after the other.
//   counts:  [ranks], the number of entries of each message, none negative.
//   values:  [sum of counts] of `dtype`; indices: the same length.
void hvds_unpack(const int32_t* messages, const int32_t* counts, int64_t ranks, enum hvds_dtype dtype, void* values,
                 int32_t* indices);

// The header of a message between ranks that do not know each other's counts: the count, and 1 if the contents are
// unusable because something was not finite, else 0.
#define HVDS_HEADER_WORDS 2

// Reads the headers of the messages [words] of `ranks` ranks.
//   counts:    [ranks].
//   nonfinite: whether any rank's header says so.
// Returns -1, or the first rank whose message does not fit, or `ranks` if words are left over.
int64_t hvds_read_counts(const int32_t* messages, int64_t words, int64_t ranks, enum hvds_dtype dtype, int32_t* counts,
                         bool* nonfinite);

// Adds up contributions to a dense vector: float32 sums in the order of the entries, starting from +0, at indices -
// offset. Each sum is divided once by `divisor` and rounded to the output's type; all other elements are +0.
//   values:  [count] of `dtype`; indices: [count], which may repeat. Fastest if they consist of few ascending runs, as
//            when each rank sends ascending indices.
//   dense:   [size] of `dense_dtype`.
// Returns -1, or the position of the first index outside [offset, offset + size); then nothing is written.
int64_t hvds_sparse_sum(const void* values, enum hvds_dtype dtype, const int32_t* indices, int64_t count,
                        int64_t offset, float divisor, void* dense, enum hvds_dtype dense_dtype, int64_t size,
                        const hvds_parallel* parallel);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_SPARSE_H_
