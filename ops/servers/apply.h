// Steps of Keras's optimizers on a server's shard of the parameters. Weights and slots are updated in place, in one
// pass over all elements or only over those whose gradient is given.
//
// The results are bitwise identical to those of Keras's own step in TensorFlow's eager mode on a CPU, under every
// instruction set and any number of threads: each operation is rounded to float32, in Keras's order, and denormal
// numbers are treated as zero.
#ifndef HVD_SPARSE_OPS_APPLY_H_
#define HVD_SPARSE_OPS_APPLY_H_

#include <stdint.h>

#include "../common/parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

// The update of each weight w, given its gradient g; slots and numbers in this order (keras/src/optimizers).
enum hvds_optimizer {
  HVDS_SGD,       // no slots; rate: w -= g * rate
  HVDS_MOMENTUM,  // m; rate, momentum: m = m * momentum - g * rate; w += m
  HVDS_NESTEROV,  // m; rate, momentum: m = m * momentum - g * rate; w += m * momentum - g * rate
  // m, v; alpha, c1 = 1 - beta_1, c2 = 1 - beta_2, epsilon: m += (g - m) * c1; v += (g * g - v) * c2;
  // w -= m * alpha / (sqrt(v) + epsilon)
  HVDS_ADAM,
  HVDS_ADAGRAD,  // a; rate, epsilon: a += g * g; w -= rate * g / sqrt(a + epsilon)
  // v; rate, epsilon, rho, c = 1 - rho: v = rho * v + c * (g * g); w -= rate * g / sqrt(v + epsilon)
  HVDS_RMSPROP,
  // v, m; and momentum: m = momentum * m + rate * g / sqrt(v + epsilon); w -= m
  HVDS_RMSPROP_MOMENTUM,
  // v, a; as RMSprop, and a = rho * a + c * g; v - a * a replaces v under the root
  HVDS_RMSPROP_CENTERED,
  // v, a, m; and momentum: both of the above
  HVDS_RMSPROP_CENTERED_MOMENTUM,
  HVDS_OPTIMIZERS  // their number
};

enum { HVDS_MOST_SLOTS = 3, HVDS_MOST_NUMBERS = 5 };

typedef struct hvds_step {
  enum hvds_optimizer optimizer;
  float numbers[HVDS_MOST_NUMBERS];
  int32_t decays;  // whether weights decay first: w -= (w * decay) * decay_rate
  float decay, decay_rate;
} hvds_step;

// The number of slots and of numbers that an optimizer has.
int32_t hvds_slot_count(enum hvds_optimizer optimizer);
int32_t hvds_number_count(enum hvds_optimizer optimizer);

// Makes a step.
//   weights, gradient, slots[0], ...: [size]; nothing overlaps.
void hvds_apply(const hvds_step* step, float* weights, float* const* slots, const float* gradient, int64_t size,
                const hvds_parallel* parallel);

// Makes a step for the elements at `places` only.
//   weights, slots[0], ...: of any size; nothing overlaps.
//   gradient, places: [count]; places are in range and all different; fastest in ascending order.
void hvds_apply_places(const hvds_step* step, float* weights, float* const* slots, const float* gradient,
                       const int32_t* places, int64_t count, const hvds_parallel* parallel);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_APPLY_H_
