// The inner loops for AVX-512 (F, BW, VL, DQ).
#if defined(__x86_64__) && defined(__GNUC__)

#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12's own headers, where a result's old value is unused
#endif

#include "../common/cpu_features.h"
#include "../common/dtype.h"
#include "../common/vectors_avx512.h"
#include "select_cpu_kernels.h"

#define HVDS_ISA avx512
#define HVDS_KERNELS kAvx512Kernels

namespace hvds {
namespace avx512 {
namespace {

using Keys = __m512i;
constexpr double kDenseFrom = 0.0;

HVDS_INLINE Floats zero() { return _mm512_setzero_ps(); }
HVDS_INLINE Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
HVDS_INLINE Floats subtract(Floats a, Floats b) { return _mm512_sub_ps(a, b); }

HVDS_INLINE Keys keys(Floats values) {
  return _mm512_and_si512(_mm512_castps_si512(values), _mm512_set1_epi32(kHighestKey));
}
HVDS_INLINE Floats magnitudes(Keys keys) { return _mm512_castsi512_ps(keys); }
HVDS_INLINE Keys larger(Keys a, Keys b) { return _mm512_max_epi32(a, b); }

// A bound minus one, as a vector, so that the signed comparison "greater than" works for all bounds from 0 to kNoKey.
HVDS_INLINE Keys bound(Key key) { return _mm512_set1_epi32(static_cast<int>(key - 1)); }

// The mask as a number whose upper half is zero. In assembly, because GCC 12 may store the mask as two bytes and load
// four.
HVDS_INLINE unsigned number_of(__mmask16 mask) {
  unsigned number;
  __asm__("kmovw %1, %0" : "=r"(number) : "k"(mask));
  return number;
}
HVDS_INLINE unsigned reaching(Keys keys, Keys bound) { return number_of(_mm512_cmpgt_epi32_mask(keys, bound)); }
HVDS_INLINE Floats where_reaching(Keys keys, Keys bound, Floats then, Floats otherwise) {
  return _mm512_mask_blend_ps(_mm512_cmpgt_epi32_mask(keys, bound), otherwise, then);
}

HVDS_INLINE Keys iota(int32_t first) {
  return _mm512_add_epi32(_mm512_set1_epi32(first),
                          _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
}
HVDS_INLINE Keys advanced(Keys index, int32_t by) { return _mm512_add_epi32(index, _mm512_set1_epi32(by)); }
HVDS_INLINE Keys no_keys() { return _mm512_setzero_si512(); }
HVDS_INLINE Keys load_keys(const void* from) { return _mm512_loadu_si512(from); }
HVDS_INLINE Keys as_keys(Floats values) { return _mm512_castps_si512(values); }

// Writes the entries whose bit is set, one after the other; up to kWidth entries are overwritten. In halves, as there
// are seldom more than eight, and a store that crosses a cache line costs twice as much.
HVDS_INLINE void compress(void* to, Keys entries, unsigned mask) {
  const Keys chosen = _mm512_maskz_compress_epi32(static_cast<__mmask16>(mask), entries);
  _mm256_storeu_si256(static_cast<__m256i*>(to), _mm512_castsi512_si256(chosen));
  if (__builtin_popcount(mask) > 8) {
    _mm256_storeu_si256(static_cast<__m256i*>(to) + 1, _mm512_extracti64x4_epi64(chosen, 1));
  }
}

HVDS_INLINE Floats rounded_to_half(Floats values) {
  return _mm512_cvtph_ps(_mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

HVDS_INLINE Keys bfloat16_bits(Floats values) {
  const Keys bits = as_keys(values);
  const Keys odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  return _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
}

HVDS_INLINE Floats rounded_to_bfloat16(Floats values) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(bfloat16_bits(values), 16));
}

HVDS_INLINE void store_narrow(Half* to, Floats values) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

HVDS_INLINE void store_narrow(Bfloat16* to, Floats values) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(bfloat16_bits(values)));
}

}  // namespace
}  // namespace avx512
}  // namespace hvds

#include "select_cpu_kernels.inc"

#endif  // __x86_64__ && __GNUC__
