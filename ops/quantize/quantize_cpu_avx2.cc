// The inner loops of QSGD for AVX2.
#if defined(__x86_64__) && defined(__GNUC__)

#include <cstring>

#include "../common/vectors_avx2.h"
#include "quantize_kernels.h"

#define HVDS_ISA avx2
#define HVDS_QUANTIZE kAvx2Quantize

namespace hvds {
namespace avx2 {
namespace {

HVDS_INLINE __m256i bits(Ints ints) { return reinterpret_cast<__m256i>(ints); }
HVDS_INLINE Ints ints(__m256i bits) { return reinterpret_cast<Ints>(bits); }

HVDS_INLINE Ints plus(Ints a, Ints b) { return ints(_mm256_add_epi32(bits(a), bits(b))); }
HVDS_INLINE Ints counted_from(int32_t first) { return plus(repeated(first), Ints{0, 1, 2, 3, 4, 5, 6, 7}); }

HVDS_INLINE Ints larger(Ints a, Ints b) { return a > b ? a : b; }
HVDS_INLINE Ints smaller(Ints a, Ints b) { return a < b ? a : b; }
HVDS_INLINE Ints times(Ints a, Ints b) { return ints(_mm256_mullo_epi32(bits(a), bits(b))); }
template <int kBy>
HVDS_INLINE Ints shifted_right(Ints a) { return ints(_mm256_srli_epi32(bits(a), kBy)); }

HVDS_INLINE Ints magnitude_bits(Floats values) { return reinterpret_cast<Ints>(values) & repeated(0x7fffffff); }
HVDS_INLINE Ints rounded(Floats values) { return ints(_mm256_cvtps_epi32(values)); }

// The low bytes of 32 numbers, in order.
HVDS_INLINE __m256i bytes_of(const Ints* levels) {
  const __m256i first = _mm256_packs_epi32(bits(levels[0]), bits(levels[1]));
  const __m256i second = _mm256_packs_epi32(bits(levels[2]), bits(levels[3]));
  const __m256i order = _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0);
  return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(first, second), order);
}

// Each even byte plus 2^kBits times the odd byte after it.
template <int kBits>
HVDS_INLINE __m256i pairs_of(const Ints* levels) {
  const __m256i low = _mm256_and_si256(bytes_of(levels), _mm256_set1_epi8((1 << kBits) - 1));
  return _mm256_maddubs_epi16(low, _mm256_set1_epi16(static_cast<short>(1 | 1 << (8 + kBits))));
}

HVDS_INLINE __m256i fours_of(const Ints* levels) {
  return _mm256_madd_epi16(pairs_of<2>(levels), _mm256_set1_epi32(1 | 1 << 20));
}

template <int kBits>
HVDS_INLINE void put(const Ints* levels, uint8_t* codes) {
  if (kBits == 8) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), bytes_of(levels));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes) + 1, bytes_of(levels + 4));
    return;
  }
  if (kBits == 4) {
    const __m256i packed = _mm256_packus_epi16(pairs_of<4>(levels), pairs_of<4>(levels + 4));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), _mm256_permute4x64_epi64(packed, 0xd8));
    return;
  }
  const __m256i words = _mm256_packs_epi32(fours_of(levels), fours_of(levels + 4));
  const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(codes),
                   _mm_packus_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1)));
}

template <int kBits>
struct Decoder {
  Floats step, scale;

  HVDS_INLINE explicit Decoder(const BucketRule& rule) : step(repeated(rule.step)), scale(repeated(rule.scale)) {}

  HVDS_INLINE Floats values(const uint8_t* codes) const {
    const Floats values = _mm256_cvtepi32_ps(levels(codes)) * step;
    return _mm256_max_ps(-scale, _mm256_min_ps(scale, values));  // returns the second of equal zeros
  }

  HVDS_INLINE __m256i levels(const uint8_t* codes) const {
    if (kBits == 8) return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
    uint32_t word = 0;
    memcpy(&word, codes, kBits);
    const __m256i places = _mm256_mullo_epi32(_mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0), _mm256_set1_epi32(kBits));
    const __m256i by = _mm256_sub_epi32(_mm256_set1_epi32(32 - kBits), places);
    return _mm256_srai_epi32(_mm256_sllv_epi32(_mm256_set1_epi32(static_cast<int32_t>(word)), by), 32 - kBits);
  }
};

}  // namespace
}  // namespace avx2
}  // namespace hvds

#include "quantize_kernels.inc"

#endif  // __x86_64__ && __GNUC__
