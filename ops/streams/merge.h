// Sparse streams (SparCML 5.1): vectors of which some rows are there, how they travel, and how several meet in one.
//
// A vector has `size` rows of `width` elements. A row that is absent is the neutral element of the operation: 0 for sums,
// 1 for products, -Inf for the maximum, +Inf for the minimum. A message is made of words of 32 bits:
//   word 0: 0 sparse, 1 dense; word 1: `count`, the rows that are there (dense: size);
//   sparse: indices [count], ascending and unique, padded with a zero to an even number of words;
//           then values [count][width], padded with zeros to an even number of words;
//   dense:  values [size][width], padded likewise.
// So messages that lie one after the other can be taken apart, and begin at multiples of 8 bytes if the first one does.
//
// Every element of a result is ((neutral o x_0) o x_1) o ..., in the order in which the x_j stand or messages come, so it
// does not depend on the form in which they come; a lone -0 becomes +0 in a sum. Float32 and float64 are rounded after
// each operation; float16 is widened to float32 and rounded back after each, which gives what float16 arithmetic would.
// Of equal numbers the first is the maximum and the minimum; a NaN among them is both. Results are the same bits
// under every instruction set and any number of threads, but for which NaN a NaN is.
#ifndef HVD_SPARSE_OPS_MERGE_H_
#define HVD_SPARSE_OPS_MERGE_H_

#include <stdbool.h>
#include <stdint.h>

#include "../common/dtype.h"
#include "../common/parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

enum hvds_combine { HVDS_SUM = 0, HVDS_MAX = 1, HVDS_MIN = 2, HVDS_PRODUCT = 3 };

// The vectors that a call is about; size * width < 2^31, width >= 1.
typedef struct hvds_rows {
  int64_t size;
  int64_t width;
  enum hvds_dtype dtype;  // float16, float32 or float64
} hvds_rows;

// A message that was taken apart.
typedef struct hvds_stream {
  int64_t count;
  const int32_t* indices;  // [count]; NULL where the message is dense
  const void* values;      // [count][width]
  int64_t words;           // of the message
} hvds_stream;

enum hvds_stream_fault {
  HVDS_STREAM_OK = 0,
  HVDS_STREAM_FORM,    // word 0 is neither 0 nor 1
  HVDS_STREAM_COUNT,   // word 1 is outside [0, size], or of a dense message not size
  HVDS_STREAM_LENGTH,  // there are fewer words than these two need
  HVDS_STREAM_ORDER,   // indices[at] is not above the one before it
  HVDS_STREAM_BOUNDS,  // indices[at] is outside [0, size)
};

// Takes the first of the messages in words[length] apart, which begins at a multiple of 8 bytes. Checks all that the
// other functions rely on; where something is wrong, `stream` has the count that was read, and *at the place.
enum hvds_stream_fault hvds_stream_read(const int32_t* words, int64_t length, const hvds_rows* rows,
                                        hvds_stream* stream, int64_t* at);

// The words of a message with `count` rows.
int64_t hvds_stream_words(bool dense, int64_t count, const hvds_rows* rows);

// Words that suffice for a message that is sparse with at most `most` rows, and dense where it has more than
// `dense_above`.
int64_t hvds_stream_room(int64_t most, const hvds_rows* rows, int64_t dense_above);

// The position of the first index outside [0, size), or -1.
int64_t hvds_stream_outside(const int32_t* indices, int64_t count, int64_t size);

// Writes a message [hvds_stream_room(min(count, size))] of rows in any order, in which an index may occur again; fastest
// where they are ascending and unique. Returns the words in use, or -1 where memory ran out.
//   values: [count][width]; indices: [count], all in [0, size).
int64_t hvds_stream_pack(const void* values, const int32_t* indices, int64_t count, const hvds_rows* rows,
                         enum hvds_combine combine, int64_t dense_above, int32_t* message);

// Combines streams [number >= 1] of the same vector into message [hvds_stream_reduce_room]. Returns the words in use.
// Whether the result is dense is decided by the exact number of rows in the union, which is counted beforehand only where
// the sum of the counts does not decide it.
int64_t hvds_stream_reduce_room(const hvds_stream* streams, int64_t number, const hvds_rows* rows, int64_t dense_above);
int64_t hvds_stream_reduce(const hvds_stream* streams, int64_t number, const hvds_rows* rows, enum hvds_combine combine,
                           int64_t dense_above, int32_t* message, const hvds_parallel* parallel);

// Piece `part` of a vector that is cut into `parts` >= 1: rows [part * size / parts, (part + 1) * size / parts), both
// rounded down.
hvds_rows hvds_stream_piece(const hvds_rows* rows, int64_t part, int64_t parts);

// Cuts a vector into pieces, whose indices count from their own begin on. Piece p is dense where it has more than
// dense_above[p] rows. The first function gives the words of all messages together and of each; the second writes them,
// one after the other.
int64_t hvds_stream_split_words(const hvds_stream* stream, const hvds_rows* rows, int64_t parts,
                                const int64_t* dense_above, int32_t* lengths);
void hvds_stream_split(const hvds_stream* stream, const hvds_rows* rows, enum hvds_combine combine, int64_t parts,
                       const int64_t* dense_above, int32_t* messages);

// The reverse: pieces [parts] of the whole vector `rows`, in order, into one message. The first function gives its words.
int64_t hvds_stream_concat_words(const hvds_stream* pieces, int64_t parts, const hvds_rows* rows, int64_t dense_above);
void hvds_stream_concat(const hvds_stream* pieces, int64_t parts, const hvds_rows* rows, enum hvds_combine combine,
                        int64_t dense_above, int32_t* message);

// Writes the whole vector, values [size][width]; rows that are there are divided by `divisor`, rounded to float32 for
// float16 and float32, and then rounded once.
void hvds_stream_dense(const hvds_stream* stream, const hvds_rows* rows, enum hvds_combine combine, double divisor,
                       void* values, const hvds_parallel* parallel);

// Writes the rows that are there, values [count][width], and indices [count].
void hvds_stream_slices(const hvds_stream* stream, const hvds_rows* rows, void* values, int32_t* indices);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_MERGE_H_
