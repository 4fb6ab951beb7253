// QSGD: values coded in a few bits each, with one scale per bucket of consecutive values (SparCML 6).
//
// With s = 2^(bits - 1) - 1 levels and step = scale / s, the level of x is floor(x / step + u), where x / step is
// rounded to a multiple of 2^-16 and u is drawn from the multiples of 2^-16 in [0, 1): |x| / step is rounded up with
// the probability of its fraction. A level decodes to level * step, clamped to [-scale, scale]; the expectation is x.
// Levels are two's-complement numbers of `bits` bits; the first of those that share a byte is in its lowest bits, and
// each bucket begins a byte. A bucket whose step is below 2^-104 (5e-32) has scale 0 and decodes to zeros.
//
// Random numbers are a function of the seed and of the element's number. All results are bitwise identical under every
// instruction set and any number of threads.
#ifndef HVD_SPARSE_OPS_QUANTIZE_H_
#define HVD_SPARSE_OPS_QUANTIZE_H_

#include <stdint.h>

#include "../common/parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

enum hvds_norm {
  HVDS_NORM_MAX = 0,  // the scale is the largest magnitude of the bucket
  HVDS_NORM_L2 = 1,   // the root of the sum of squares, summed in float64, in sixteen lanes that are folded by halves
};

typedef struct hvds_qsgd {
  int bits;        // 2, 4 or 8
  int64_t bucket;  // values per scale, at least 1; the last bucket may be shorter
} hvds_qsgd;

int64_t hvds_quantize_buckets(int64_t count, const hvds_qsgd* coding);
int64_t hvds_quantize_bytes(int64_t count, const hvds_qsgd* coding);

// Codes values [count < 2^31] into codes [hvds_quantize_bytes] and scales [hvds_quantize_buckets].
// Returns -1, or the number of the first bucket that holds a NaN or an infinity, or whose L2 norm overflows float32;
// then the codes must not be used.
int64_t hvds_quantize(const float* values, int64_t count, const hvds_qsgd* coding, enum hvds_norm norm, uint64_t seed,
                      uint8_t* codes, float* scales, const hvds_parallel* parallel);

void hvds_dequantize(const uint8_t* codes, const float* scales, int64_t count, const hvds_qsgd* coding, float* values,
                     const hvds_parallel* parallel);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_QUANTIZE_H_
