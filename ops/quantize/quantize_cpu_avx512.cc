// The inner loops of QSGD for AVX-512 (F, BW, VL, DQ).
#if defined(__x86_64__) && defined(__GNUC__)

#include <cstring>

#include "../common/vectors_avx512.h"
#include "quantize_kernels.h"

#define HVDS_ISA avx512
#define HVDS_QUANTIZE kAvx512Quantize

namespace hvds {
namespace avx512 {
namespace {

HVDS_INLINE __m512i bits(Ints ints) { return reinterpret_cast<__m512i>(ints); }
HVDS_INLINE Ints ints(__m512i bits) { return reinterpret_cast<Ints>(bits); }

HVDS_INLINE Ints plus(Ints a, Ints b) { return ints(_mm512_add_epi32(bits(a), bits(b))); }
HVDS_INLINE Ints counted_from(int32_t first) {
  return plus(repeated(first), ints(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)));
}

HVDS_INLINE Ints larger(Ints a, Ints b) { return a > b ? a : b; }
HVDS_INLINE Ints smaller(Ints a, Ints b) { return a < b ? a : b; }
HVDS_INLINE Ints times(Ints a, Ints b) { return ints(_mm512_mullo_epi32(bits(a), bits(b))); }
template <int kBy>
HVDS_INLINE Ints shifted_right(Ints a) { return ints(_mm512_srli_epi32(bits(a), kBy)); }

HVDS_INLINE Ints magnitude_bits(Floats values) { return reinterpret_cast<Ints>(values) & repeated(0x7fffffff); }
HVDS_INLINE Ints rounded(Floats values) { return ints(_mm512_cvtps_epi32(values)); }

// The low bytes of 64 numbers, in order.
HVDS_INLINE __m512i bytes_of(const Ints* levels) {
  const __m512i first = _mm512_packs_epi32(bits(levels[0]), bits(levels[1]));
  const __m512i second = _mm512_packs_epi32(bits(levels[2]), bits(levels[3]));
  const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  return _mm512_permutexvar_epi32(order, _mm512_packs_epi16(first, second));
}

template <int kBits>
HVDS_INLINE void put(const Ints* levels, uint8_t* codes) {
  const __m512i bytes = bytes_of(levels);
  if (kBits == 8) {
    _mm512_storeu_si512(codes, bytes);
    return;
  }
  const __m512i low = _mm512_and_si512(bytes, _mm512_set1_epi8((1 << kBits) - 1));
  // Each even byte plus 2^kBits times the odd byte after it.
  const __m512i pairs = _mm512_maddubs_epi16(low, _mm512_set1_epi16(static_cast<short>(1 | 1 << (8 + kBits))));
  if (kBits == 4) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), _mm512_cvtepi16_epi8(pairs));
    return;
  }
  const __m512i fours = _mm512_madd_epi16(pairs, _mm512_set1_epi32(1 | 1 << 20));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), _mm512_cvtepi32_epi8(fours));
}

// Decodes by a table if there are at most 16 codes, indexed by the low four bits of each number.
template <int kBits>
struct Decoder {
  Floats table;

  HVDS_INLINE explicit Decoder(const BucketRule& rule) {
    alignas(64) float entries[16];
    for (int code = 0; code < 16; ++code) {
      const auto above = static_cast<int32_t>(static_cast<uint32_t>(code) << (32 - kBits));
      entries[code] = rule.decoded(above >> (32 - kBits));
    }
    table = load(entries);
  }

  HVDS_INLINE Floats values(const uint8_t* codes) const { return _mm512_permutexvar_ps(numbers(codes), table); }

  HVDS_INLINE __m512i numbers(const uint8_t* codes) const {
    if (kBits == 4) {
      const __m512i pairs = _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
      return _mm512_or_si512(pairs, _mm512_slli_epi64(pairs, 28));
    }
    uint32_t word;
    memcpy(&word, codes, sizeof word);
    const __m512i by = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    return _mm512_srlv_epi32(_mm512_set1_epi32(static_cast<int32_t>(word)), by);
  }
};

template <>
struct Decoder<8> {
  Floats step, scale;

  HVDS_INLINE explicit Decoder(const BucketRule& rule) : step(repeated(rule.step)), scale(repeated(rule.scale)) {}

  HVDS_INLINE Floats values(const uint8_t* codes) const {
    const __m512i levels = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    const Floats values = _mm512_cvtepi32_ps(levels) * step;
    return _mm512_max_ps(-scale, _mm512_min_ps(scale, values));  // returns the second of equal zeros
  }
};

}  // namespace
}  // namespace avx512
}  // namespace hvds

#include "quantize_kernels.inc"

#endif  // __x86_64__ && __GNUC__
