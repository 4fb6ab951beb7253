// Sparse streams (SparCML 5.1): vectors with some rows present, their message format, and how several are merged.
//
// A vector has `size` rows of `width` elements. An absent row is the neutral element of the operation: 0 for sums, 1
// for products, -Inf for the maximum, +Inf for the minimum. A message consists of 32-bit words:
//   word 0: 0 sparse, 1 dense; word 1: `count`, the number of rows present (dense: size);
//   sparse: indices [count], ascending and unique, padded with a zero to an even number of words;
//           then values [count][width], padded with zeros to an even number of words;
//   dense:  values [size][width], padded likewise.
// So concatenated messages can be split, and all begin at multiples of 8 bytes if the first one does.
//
// Every element of a result is ((neutral o x_0) o x_1) o ..., in the order of the x_j or of the messages, so it does
// not depend on their form; a single -0 becomes +0 in a sum. Float32 and float64 are rounded after each operation;
// float16 is widened to float32 and rounded back after each, which gives the result of float16 arithmetic. Of equal
// numbers the first is the maximum and the minimum; a NaN among them is both. Results are bitwise identical under every
// instruction set and any number of threads, except for the bits of a NaN.
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

// The vectors of a call; size * width < 2^31, width >= 1.
typedef struct hvds_rows {
  int64_t size;
  int64_t width;
  enum hvds_dtype dtype;  // float16, float32 or float64
} hvds_rows;

// A message after reading.
typedef struct hvds_stream {
  int64_t count;
  const int32_t* indices;  // [count]; NULL if the message is dense
  const void* values;      // [count][width]
  int64_t words;           // length of the message
} hvds_stream;

enum hvds_stream_fault {
  HVDS_STREAM_OK = 0,
  HVDS_STREAM_FORM,    // word 0 is neither 0 nor 1
  HVDS_STREAM_COUNT,   // word 1 is outside [0, size], or not size in a dense message
  HVDS_STREAM_LENGTH,  // there are fewer words than these two require
  HVDS_STREAM_ORDER,   // indices[at] is not greater than the one before it
  HVDS_STREAM_BOUNDS,  // indices[at] is outside [0, size)
};

// Reads the first of the messages in words[length], which begins at a multiple of 8 bytes. Checks everything that the
// other functions rely on; on a fault, `stream` has the count that was read, and *at the position.
enum hvds_stream_fault hvds_stream_read(const int32_t* words, int64_t length, const hvds_rows* rows,
                                        hvds_stream* stream, int64_t* at);

// The length in words of a message with `count` rows.
int64_t hvds_stream_words(bool dense, int64_t count, const hvds_rows* rows);

// A number of words sufficient for a message that is sparse with at most `most` rows, and dense with more than
// `dense_above`.
int64_t hvds_stream_room(int64_t most, const hvds_rows* rows, int64_t dense_above);

// The position of the first index outside [0, size), or -1.
int64_t hvds_stream_outside(const int32_t* indices, int64_t count, int64_t size);

// Writes a message [hvds_stream_room(min(count, size))] of rows in any order, in which indices may repeat; fastest if
// they are ascending and unique. Returns the words used, or -1 if memory ran out.
//   values: [count][width]; indices: [count], all in [0, size).
int64_t hvds_stream_pack(const void* values, const int32_t* indices, int64_t count, const hvds_rows* rows,
                         enum hvds_combine combine, int64_t dense_above, int32_t* message);

// Combines streams [number >= 1] of the same vector into message [hvds_stream_reduce_room]. Returns the words used.
// Whether the result is dense depends on the exact number of rows in the union, which is counted beforehand only if the
// sum of the counts does not decide it.
int64_t hvds_stream_reduce_room(const hvds_stream* streams, int64_t number, const hvds_rows* rows, int64_t dense_above);
int64_t hvds_stream_reduce(const hvds_stream* streams, int64_t number, const hvds_rows* rows, enum hvds_combine combine,
                           int64_t dense_above, int32_t* message, const hvds_parallel* parallel);

// Piece `part` of a vector that is cut into `parts` >= 1: rows [part * size / parts, (part + 1) * size / parts), both
// rounded down.
hvds_rows hvds_stream_piece(const hvds_rows* rows, int64_t part, int64_t parts);

// Cuts a vector into pieces, whose indices are relative to the piece. Piece p is dense if it has more than
// dense_above[p] rows. The first function returns the words of all messages together and sets those of each; the second
// writes them, one after the other.
int64_t hvds_stream_split_words(const hvds_stream* stream, const hvds_rows* rows, int64_t parts,
                                const int64_t* dense_above, int32_t* lengths);
void hvds_stream_split(const hvds_stream* stream, const hvds_rows* rows, enum hvds_combine combine, int64_t parts,
                       const int64_t* dense_above, int32_t* messages);

// The inverse: joins pieces [parts] of the whole vector `rows`, in order, into one message. The first function returns
// its length in words.
int64_t hvds_stream_concat_words(const hvds_stream* pieces, int64_t parts, const hvds_rows* rows, int64_t dense_above);
void hvds_stream_concat(const hvds_stream* pieces, int64_t parts, const hvds_rows* rows, enum hvds_combine combine,
                        int64_t dense_above, int32_t* message);

// Writes the whole vector, values [size][width]. Rows present are divided by `divisor`, which is rounded to float32 for
// float16 and float32, and then rounded once.
void hvds_stream_dense(const hvds_stream* stream, const hvds_rows* rows, enum hvds_combine combine, double divisor,
                       void* values, const hvds_parallel* parallel);

// Writes the rows present: values [count][width], and indices [count].
void hvds_stream_slices(const hvds_stream* stream, const hvds_rows* rows, void* values, int32_t* indices);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_MERGE_H_
