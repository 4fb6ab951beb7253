// The inner loops, which exist once per instruction set; their source is kernels.inc.
#ifndef LARS_KERNELS_H_
#define LARS_KERNELS_H_

#include <cstdint>

namespace lars {

constexpr int kDtypes = 4;

// A part of one layer.
struct Span {
  void* weight;
  void* slots[2];
  const void* gradient;
  int64_t count;
  double scale, decay;
};

// lamb_rule and the numbers derived from its step, each rounded to the type used for computing.
struct LambRule {
  double beta_1, rest_1, correction_1;
  double beta_2, rest_2, correction_2;
  double epsilon;
};

// Tables indexed by dtype.
struct Kernels {
  double (*sum_of_squares[kDtypes])(const void* elements, int64_t count);  // of one block
  void (*lars_update[kDtypes])(const Span& span, double momentum);
  void (*nesterov_update[kDtypes])(const Span& span, double momentum);
  void (*lamb_squares[kDtypes])(const Span& span, const LambRule& rule, double* sums);  // of one block
  void (*lamb_update[kDtypes])(const Span& span, const LambRule& rule);
};

extern const Kernels kBaseKernels;
#if defined(__x86_64__) && defined(__GNUC__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

}  // namespace lars

#endif  // LARS_KERNELS_H_
