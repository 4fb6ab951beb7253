// The inner loops for AVX2 with F16C and BMI.
#if defined(__x86_64__) && defined(__GNUC__)


#include <array>

#include "../common/cpu_features.h"
#include "../common/dtype.h"
#include "../common/vectors_avx2.h"
#include "select_cpu_kernels.h"

#define HVDS_ISA avx2
#define HVDS_KERNELS kAvx2Kernels

namespace hvds {
namespace avx2 {
namespace {

using Keys = __m256i;
constexpr double kDenseFrom = 0.02;

// For each mask the positions of its set bits, a byte each, lowest first.
constexpr std::array<uint64_t, 256> positions_of_bits() {
  std::array<uint64_t, 256> table{};
  for (unsigned mask = 0; mask < 256; ++mask) {
    int found = 0;
    for (uint64_t bit = 0; bit < 8; ++bit) {
      if (mask >> bit & 1) table[mask] |= bit << 8 * found++;
    }
  }
  return table;
}
constexpr std::array<uint64_t, 256> kPositions = positions_of_bits();

HVDS_INLINE Floats zero() { return _mm256_setzero_ps(); }
HVDS_INLINE Floats add(Floats a, Floats b) { return _mm256_add_ps(a, b); }
HVDS_INLINE Floats subtract(Floats a, Floats b) { return _mm256_sub_ps(a, b); }

HVDS_INLINE Keys keys(Floats values) {
  return _mm256_and_si256(_mm256_castps_si256(values), _mm256_set1_epi32(kHighestKey));
}
HVDS_INLINE Floats magnitudes(Keys keys) { return _mm256_castsi256_ps(keys); }
HVDS_INLINE Keys larger(Keys a, Keys b) { return _mm256_max_epi32(a, b); }

// A bound minus one, as a vector: AVX2 has only a signed "greater than", which works for all bounds from 0 to kNoKey.
HVDS_INLINE Keys bound(Key key) { return _mm256_set1_epi32(static_cast<int>(key - 1)); }
HVDS_INLINE unsigned reaching(Keys keys, Keys bound) {
  return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(keys, bound))));
}
HVDS_INLINE Floats where_reaching(Keys keys, Keys bound, Floats then, Floats otherwise) {
  return _mm256_blendv_ps(otherwise, then, _mm256_castsi256_ps(_mm256_cmpgt_epi32(keys, bound)));
}

HVDS_INLINE Keys iota(int32_t first) {
  return _mm256_add_epi32(_mm256_set1_epi32(first), _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
}
HVDS_INLINE Keys advanced(Keys index, int32_t by) { return _mm256_add_epi32(index, _mm256_set1_epi32(by)); }
HVDS_INLINE Keys no_keys() { return _mm256_setzero_si256(); }
HVDS_INLINE Keys load_keys(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
HVDS_INLINE Keys as_keys(Floats values) { return _mm256_castps_si256(values); }

// Writes the entries whose bit is set, one after the other; kWidth entries are overwritten.
HVDS_INLINE void compress(void* to, Keys entries, unsigned mask) {
  const Keys order = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(kPositions[mask])));
  _mm256_storeu_si256(static_cast<__m256i*>(to), _mm256_permutevar8x32_epi32(entries, order));
}

HVDS_INLINE Floats rounded_to_half(Floats values) {
  return _mm256_cvtph_ps(_mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

HVDS_INLINE Keys bfloat16_bits(Floats values) {
  const Keys bits = as_keys(values);
  const Keys odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
}

HVDS_INLINE Floats rounded_to_bfloat16(Floats values) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(bfloat16_bits(values), 16));
}

HVDS_INLINE void store_narrow(Half* to, Floats values) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

HVDS_INLINE void store_narrow(Bfloat16* to, Floats values) {
  const Keys bits = bfloat16_bits(values);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1)));
}

}  // namespace
}  // namespace avx2
}  // namespace hvds

#include "select_cpu_kernels.inc"

#endif  // __x86_64__ && __GNUC__
