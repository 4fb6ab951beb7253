// The loops over the elements of a row, which exist once per instruction set; their source is rows_kernels.inc.
#ifndef HVD_SPARSE_OPS_ROWS_KERNELS_H_
#define HVD_SPARSE_OPS_ROWS_KERNELS_H_

#include <cstdint>

namespace hvds {

// A magnitude: the bits of an element without the sign, which compare like magnitudes.
using RowKey = uint32_t;

constexpr int64_t kRowOverhang = 16;  // entries that a vector store may write past the last valid one

// What is kept of a row: keys >= `sure`, and the first `ties` of those >= `edge` but < `sure`.
struct RowBounds {
  RowKey sure;
  RowKey edge;
  int64_t ties;
};

// Where the kept elements are written.
struct RowOutput {
  void* dense;         // the whole row, with zeros; or null
  bool streams;        // whether `dense` is written past the caches; it then begins at a multiple of 64 bytes
  int64_t ahead;       // prefetch distance, in bytes
  uint32_t* bits;      // of the kept elements, with room for kRowOverhang more; or null
  int32_t* positions;  // the same
};

struct RowKernels {
  int64_t lanes;  // elements per vector

  // In pairs: for four-byte and for two-byte elements.

  // The largest key in each lane over every `each` vectors. Returns the number of keys, a multiple of `lanes`.
  int64_t (*fold[2])(const void* row, int64_t length, int64_t each, RowKey* maxima);

  // The keys >= `lower`, which is not 0, with room for kRowOverhang more; followed by a vector of zeros.
  int64_t (*collect[2])(const void* row, int64_t length, RowKey lower, RowKey* keys);

  // All keys, padded with zeros to whole vectors.
  void (*widen[2])(const void* row, int64_t length, RowKey* keys);

  void (*emit[2])(const void* row, int64_t length, const RowBounds& bounds, const RowOutput& output);

  // The number of keys >= `bound`, which is not 0; they are read in whole vectors.
  int64_t (*count)(const RowKey* keys, int64_t count, RowKey bound);

  // Copies past the caches, from and to multiples of 64 bytes; whole vectors only.
  void (*stream)(const void* from, int64_t bytes, void* to);

  // To be called after streaming, by the thread that did it, before others read what it wrote.
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
