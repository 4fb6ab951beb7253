// Momentum on the sender's side: the vector that is selected from instead of the sum of the parts, in one pass over
// memory, and the removal of what was sent from the velocity.
//
// The results are bitwise identical under every instruction set and any number of threads. Half and bfloat16 are
// widened to float32; each product and each sum is rounded to float32; denormal numbers are kept.
#ifndef HVD_SPARSE_OPS_MOMENTUM_H_
#define HVD_SPARSE_OPS_MOMENTUM_H_

#include <stdint.h>

#include "../common/dtype.h"
#include "../common/parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

// velocity_out[i] = decay * velocity[i] + gain * (((p_0[i] + p_1[i]) + ...) + p_{count-1}[i]), and unless moves is null
// moves[i] = decay * velocity_out[i] + gain * the same sum (Nesterov).
//   parts:    [count][size] of `dtype`, row after row; count >= 1.
//   velocity: [size]; velocity_out: [size], may be velocity itself; moves: [size], or null. Nothing else overlaps.
// Returns the culprit: 0; 1 + the lowest number of a part that holds a NaN or an infinity; or 1 + count if all parts
// are finite but the move (moves, or velocity_out without them) is not.
int32_t hvds_momentum(const void* parts, enum hvds_dtype dtype, int32_t count, int64_t size, const float* velocity,
                      float decay, float gain, float* velocity_out, float* moves, const hvds_parallel* parallel);

// cleared = vector, with 0 at the indices.
//   vector: [size]; cleared: [size], may be vector itself, in which case nothing is copied; otherwise no overlap.
//   indices: [count], all different.
// Returns -1, or the position of the first index outside [0, size); then nothing is written.
int64_t hvds_clear(const float* vector, int64_t size, const int32_t* indices, int64_t count, float* cleared,
                   const hvds_parallel* parallel);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_MOMENTUM_H_
