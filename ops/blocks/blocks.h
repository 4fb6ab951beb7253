// Blocks of a vector that take turns (hvd_sparse/compression/block.py).
//
// The vector is cut into pieces of `longest` elements, the last ones shorter or empty, and element j of each piece
// belongs to block j % cycle. A block has `each` values of each piece, zeros where the piece has fewer elements.
#ifndef HVD_SPARSE_OPS_BLOCKS_H_
#define HVD_SPARSE_OPS_BLOCKS_H_

#include <stdint.h>

#include "../common/dtype.h"
#include "../common/parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hvds_deal {
  int64_t size;     // of the vector, at least 1
  int64_t pieces;   // at least 1
  int64_t longest;  // ceil(size / pieces)
  int64_t each;     // ceil(longest / the number of blocks that was asked for)
  int64_t cycle;    // ceil(longest / each), the number of blocks
} hvds_deal;

// The deal of a vector; size, pieces and blocks are at least 1.
hvds_deal hvds_deal_of(int64_t size, int64_t pieces, int64_t blocks);

// Adds up, and takes the block `turn` (in [0, cycle)) of the sum.
//   total:    [size].
//   residual: [size], or NULL for zeros.
//   sum:      [size], total + residual; may be total itself.
//   values:   [pieces][each]; zeros if a sum is not finite.
// Returns whether all sums are finite.
bool hvds_take_block(const float* total, const float* residual, const hvds_deal* deal, int64_t turn, float* sum,
                     float* values, const hvds_parallel* parallel);

// Sets the block `turn` of kept [size] to values - decoded, both [pieces][each].
void hvds_keep_block(const float* values, const float* decoded, const hvds_deal* deal, int64_t turn, float* kept,
                     const hvds_parallel* parallel);

// Sets mean [size] to the block's values / divisor, computed in float32 and rounded to `dtype`, and zeros elsewhere.
void hvds_spread_block(const float* values, const hvds_deal* deal, int64_t turn, float divisor, void* mean,
                       enum hvds_dtype dtype, const hvds_parallel* parallel);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_BLOCKS_H_
