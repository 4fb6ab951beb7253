// The inner loops for AVX2 with F16C.
#if defined(__x86_64__) && defined(__GNUC__)

#include <cfloat>

#include "../common/vectors_avx2.h"

#define LARS_ISA avx2
#define LARS_KERNELS kAvx2Kernels

namespace lars {
namespace avx2 {
namespace {

using namespace hvds::avx2;

HVDS_INLINE Floats root(Floats values) { return _mm256_sqrt_ps(values); }
HVDS_INLINE Doubles root(Doubles values) { return _mm256_sqrt_pd(values); }

HVDS_INLINE Floats normal_or_zero(Floats values) {
  const __m256 magnitudes = _mm256_andnot_ps(repeated(-0.0f), values);
  return _mm256_and_ps(values, _mm256_cmp_ps(magnitudes, repeated(FLT_MIN), _CMP_NLT_UQ));
}
HVDS_INLINE Doubles normal_or_zero(Doubles values) {
  const __m256d magnitudes = _mm256_andnot_pd(repeated(-0.0), values);
  return _mm256_and_pd(values, _mm256_cmp_pd(magnitudes, repeated(DBL_MIN), _CMP_NLT_UQ));
}

HVDS_INLINE void add_squares(Doubles* sums, Doubles values) { sums[0] = sums[0] + values * values; }

HVDS_INLINE void add_squares(Doubles* sums, Floats values) {
  add_squares(sums, _mm256_cvtps_pd(_mm256_castps256_ps128(values)));
  add_squares(sums + 1, _mm256_cvtps_pd(_mm256_extractf128_ps(values, 1)));
}

}  // namespace
}  // namespace avx2
}  // namespace lars

#include "kernels.inc"

#endif  // __x86_64__ && __GNUC__
