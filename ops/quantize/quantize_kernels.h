// The inner loops of QSGD, which exist once per instruction set; their source is quantize_kernels.inc.
#ifndef HVD_SPARSE_OPS_QUANTIZE_KERNELS_H_
#define HVD_SPARSE_OPS_QUANTIZE_KERNELS_H_

#include <cstdint>

#include "quantize_rules.h"

namespace hvds {

constexpr int kCodings = 3;  // 2, 4 and 8 bits

inline int coding_number(int bits) { return bits == 8 ? 2 : bits == 4 ? 1 : 0; }

// Each function processes one bucket or less.
struct QuantizeKernels {
  // The largest magnitude as bits, which represent a non-finite number if an element is not finite.
  uint32_t (*largest)(const float* values, int64_t count);

  double (*sum_of_squares)(const float* values, int64_t count);

  // `number` is that of the first value; a last byte that is not full is padded with zeros.
  void (*encode[kCodings])(const float* values, int64_t count, const BucketRule& rule, const RandomKeys& keys,
                           uint32_t number, uint8_t* codes);

  void (*decode[kCodings])(const uint8_t* codes, int64_t count, const BucketRule& rule, float* values);
};

extern const QuantizeKernels kBaseQuantize;
#if defined(__x86_64__) && defined(__GNUC__)
extern const QuantizeKernels kAvx2Quantize;
extern const QuantizeKernels kAvx512Quantize;
#endif

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_QUANTIZE_KERNELS_H_
