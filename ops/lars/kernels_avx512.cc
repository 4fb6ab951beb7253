// The inner loops for AVX-512 (F, BW, VL, DQ).
#if defined(__x86_64__) && defined(__GNUC__)

#include <cfloat>

#include "../common/vectors_avx512.h"

#define LARS_ISA avx512
#define LARS_KERNELS kAvx512Kernels

namespace lars {
namespace avx512 {
namespace {

using namespace hvds::avx512;

HVDS_INLINE Floats root(Floats values) { return _mm512_sqrt_ps(values); }
HVDS_INLINE Doubles root(Doubles values) { return _mm512_sqrt_pd(values); }

HVDS_INLINE Floats normal_or_zero(Floats values) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(_mm512_abs_ps(values), repeated(FLT_MIN), _CMP_NLT_UQ), values);
}
HVDS_INLINE Doubles normal_or_zero(Doubles values) {
  return _mm512_maskz_mov_pd(_mm512_cmp_pd_mask(_mm512_abs_pd(values), repeated(DBL_MIN), _CMP_NLT_UQ), values);
}

HVDS_INLINE void add_squares(Doubles* sums, Doubles values) { sums[0] = sums[0] + values * values; }

HVDS_INLINE void add_squares(Doubles* sums, Floats values) {
  add_squares(sums, _mm512_cvtps_pd(_mm512_castps512_ps256(values)));
  add_squares(sums + 1, _mm512_cvtps_pd(_mm512_extractf32x8_ps(values, 1)));
}

}  // namespace
}  // namespace avx512
}  // namespace lars

#include "kernels.inc"

#endif  // __x86_64__ && __GNUC__
