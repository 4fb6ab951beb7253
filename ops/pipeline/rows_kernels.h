// The loops over the elements of a row, which exist once for each instruction set; rows_kernels.inc has their text.
#ifndef HVD_SPARSE_OPS_ROWS_KERNELS_H_
#define HVD_SPARSE_OPS_ROWS_KERNELS_H_

#include <cstdint>

namespace hvds {

// A magnitude: the bits of an element without the sign, whose order is that of magnitudes.
using RowKey = uint32_t;

constexpr int64_t kRowOverhang = 16;  // entries that a vector store may write beyond the last one that counts

// What is kept of a row: what reaches `sure`, and the first `ties` of those that reach `edge` but not `sure`.
struct RowBounds {
  RowKey sure;
  RowKey edge;
  int64_t ties;
};

// Where it goes.
struct RowOutput {
  void* dense;         // the row, with zeros; or null
  bool streams;        // whether that is written past the caches; it begins at a multiple of 64 bytes then
  int64_t ahead;       // bytes between what is read and what memory is asked for meanwhile
  uint32_t* bits;      // of the kept elements, with room for kRowOverhang more; or null
  int32_t* positions;  // the same
};

struct RowKernels {
  int64_t lanes;  // elements of a vector

  // In pairs: for elements of four bytes and of two.

  // The largest key of each lane of every `each` vectors. Returns how many there are, a multiple of `lanes`.
  int64_t (*fold[2])(const void* row, int64_t length, int64_t each, RowKey* maxima);

  // The keys that reach `lower`, which is not 0, with room for kRowOverhang more; then a vector of zeros.
  int64_t (*collect[2])(const void* row, int64_t length, RowKey lower, RowKey* keys);

  // All keys, then zeros that fill the last vector.
  void (*widen[2])(const void* row, int64_t length, RowKey* keys);

  void (*emit[2])(const void* row, int64_t length, const RowBounds& bounds, const RowOutput& output);

  // How many keys reach `bound`, which is not 0; they are read in whole vectors.
  int64_t (*count)(const RowKey* keys, int64_t count, RowKey bound);

  // Copies past the caches, from and to multiples of 64 bytes; whole vectors alone.
  void (*stream)(const void* from, int64_t bytes, void* to);

  // To be called after what streams, by the thread that did it, before others read what it wrote.
  void (*end_streaming)();
};

extern const RowKernels kBaseRows;
#if defined(__x86_64__) && defined(__GNUC__)
extern const RowKernels kAvx2Rows;
extern const RowKernels kAvx512Rows;
#endif

// The table for the instruction set in use.
const RowKernels& row_kernels();

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_ROWS_KERNELS_H_
