// The loops over rows for AVX2 with BMI.
#if defined(__x86_64__) && defined(__GNUC__)

#include <array>
#include <cstring>

#include "../common/vectors_avx2.h"
#include "rows_kernels.h"

#define HVDS_ISA avx2
#define HVDS_ROWS kAvx2Rows

namespace hvds {
namespace avx2 {
namespace {

using Keys = Ints;

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

HVDS_INLINE __m256i raw(Keys keys) { return reinterpret_cast<__m256i>(keys); }
HVDS_INLINE Keys no_keys() { return Keys{}; }
HVDS_INLINE Keys both(Keys a, Keys b) { return a & b; }
HVDS_INLINE Keys sum(Keys a, Keys b) { return a + b; }
HVDS_INLINE Keys larger(Keys a, Keys b) { return reinterpret_cast<Keys>(_mm256_max_epi32(raw(a), raw(b))); }
HVDS_INLINE Keys iota() { return Keys{0, 1, 2, 3, 4, 5, 6, 7}; }

HVDS_INLINE Keys load_bits(const uint32_t* from) {
  return reinterpret_cast<Keys>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
HVDS_INLINE Keys load_bits(const uint16_t* from) {
  return reinterpret_cast<Keys>(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}

HVDS_INLINE __m128i halved(Keys bits) {
  return _mm_packus_epi32(_mm256_castsi256_si128(raw(bits)), _mm256_extracti128_si256(raw(bits), 1));
}

HVDS_INLINE void store_keys(RowKey* to, Keys keys) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), raw(keys)); }
HVDS_INLINE void store_bits(uint32_t* to, Keys bits) { store_keys(to, bits); }
HVDS_INLINE void store_bits(uint16_t* to, Keys bits) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), halved(bits));
}
HVDS_INLINE void stream_bits(uint32_t* to, Keys bits) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), raw(bits));
}
HVDS_INLINE void stream_bits(uint16_t* to, Keys bits) {
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), halved(bits));
}

// A bound minus one, as a vector: AVX2 has only a signed "greater than", which works for all bounds from 0 to 2^31.
HVDS_INLINE Keys bound_of(RowKey key) { return repeated(static_cast<int32_t>(key - 1)); }

HVDS_INLINE unsigned reaching(Keys keys, Keys bound) {
  return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(raw(keys), raw(bound)))));
}

HVDS_INLINE Keys one_more_where(Keys counts, Keys keys, Keys bound) {
  return reinterpret_cast<Keys>(_mm256_sub_epi32(raw(counts), _mm256_cmpgt_epi32(raw(keys), raw(bound))));
}

HVDS_INLINE int64_t sum_of(Keys counts) {
  const __m128i halves = _mm_add_epi32(_mm256_castsi256_si128(raw(counts)), _mm256_extracti128_si256(raw(counts), 1));
  const __m128i pairs = _mm_add_epi32(halves, _mm_shuffle_epi32(halves, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(pairs, _mm_shuffle_epi32(pairs, 0xb1)));
}

HVDS_INLINE Keys where(unsigned mask, Keys bits) {
  const Keys lanes{1, 2, 4, 8, 16, 32, 64, 128};
  const Keys set = repeated(static_cast<int32_t>(mask)) & lanes;
  return bits & reinterpret_cast<Keys>(_mm256_cmpeq_epi32(raw(set), raw(lanes)));
}

// Writes the entries whose bit is set, one after the other; kWidth entries are overwritten.
HVDS_INLINE void compress(void* to, Keys entries, unsigned mask) {
  const __m256i order = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(kPositions[mask])));
  _mm256_storeu_si256(static_cast<__m256i*>(to), _mm256_permutevar8x32_epi32(raw(entries), order));
}

}  // namespace
}  // namespace avx2
}  // namespace hvds

#include "rows_kernels.inc"

#endif  // __x86_64__ && __GNUC__
