// LARS and LAMB on a list of tensors: one pass over memory for all norms, one for the whole update.
//
// All results are bitwise identical under every instruction set and any number of threads: blocks.h defines the order
// of the additions, rules.inc the formulas, in which each operation is rounded separately. Half and bfloat16 are
// widened to float32 for computing, and rounded once when written; numbers that are not in the list (scale, decay,
// momentum ...) are rounded once to the type used for computing. Denormal numbers are kept, but a velocity or a moment
// that would become denormal becomes zero.
#ifndef LARS_PASSES_H_
#define LARS_PASSES_H_

#include <stdint.h>

#include "../common/parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

enum lars_dtype { LARS_FLOAT32 = 0, LARS_FLOAT16 = 1, LARS_BFLOAT16 = 2, LARS_FLOAT64 = 3 };

enum lars_status {
  LARS_OK = 0,
  LARS_BAD_ARGUMENT = -1,  // a negative size, an unknown dtype, a null pointer with a non-zero size, invalid blocks
  LARS_OUT_OF_MEMORY = -2,
};

// One tensor of the list and what belongs to it; each pointer is to `size` elements of `dtype`, none of which overlap.
typedef struct lars_layer {
  void* weight;
  void* slots[2];  // LARS: the velocity; LAMB: the first and the second moment
  const void* gradient;
  int64_t size;
  int32_t dtype;
  double scale;  // learning rate times trust ratio; not used for the norms
  double decay;
} lars_layer;

typedef struct lars_rule {
  double momentum;
  int32_t nesterov;
} lars_rule;

typedef struct lamb_rule {
  double beta_1;  // both in [0, 1)
  double beta_2;
  double epsilon;
  int64_t step;  // counted from 1
} lamb_rule;

// Elements per block.
int64_t lars_block_size(void);

// The number of blocks of all layers, or LARS_BAD_ARGUMENT.
int64_t lars_block_count(const lars_layer* layers, int64_t count);

// For the blocks first <= b < last: partials[2 (b - first)] is the sum of squares of the weights of block b, and the
// next element that of the gradients. Slots are not read.
int lars_partials(const lars_layer* layers, int64_t count, int64_t first, int64_t last, double* partials,
                  const hvds_parallel* parallel);

// velocity = momentum velocity + scale (gradient + decay weight); weight -= velocity, or with Nesterov's momentum
// weight -= momentum velocity + scale (gradient + decay weight).
int lars_update(const lars_layer* layers, int64_t count, const lars_rule* rule, const hvds_parallel* parallel);

// Like lars_partials, with the direction u of LAMB's step instead of the gradient; only the partials are written.
int lamb_partials(const lars_layer* layers, int64_t count, const lamb_rule* rule, int64_t first, int64_t last,
                  double* partials, const hvds_parallel* parallel);

// first = beta_1 first + (1 - beta_1) gradient; second = beta_2 second + (1 - beta_2) gradient^2; r = (first / (1 -
// beta_1^step)) / (sqrt(second / (1 - beta_2^step)) + epsilon); u = r + decay weight; weight -= scale u.
int lamb_update(const lars_layer* layers, int64_t count, const lamb_rule* rule, const hvds_parallel* parallel);

// Adds the rows of partials [blocks][columns] of each tensor in order: sums [count][columns], zero for an empty tensor.
int lars_layer_sums(const int64_t* sizes, int64_t count, const double* partials, int64_t rows, int64_t columns,
                    double* sums);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // LARS_PASSES_H_
