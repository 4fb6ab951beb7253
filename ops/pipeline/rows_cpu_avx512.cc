// The loops over rows for AVX-512 (F, BW, VL, DQ).
#if defined(__x86_64__) && defined(__GNUC__)

#if !defined(__clang__)
// GCC 12's own headers trigger these, where a result's old value does not matter
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include <cstring>

#include "../common/vectors_avx512.h"
#include "rows_kernels.h"

#define HVDS_ISA avx512
#define HVDS_ROWS kAvx512Rows

namespace hvds {
namespace avx512 {
namespace {

using Keys = Ints;

HVDS_INLINE __m512i raw(Keys keys) { return reinterpret_cast<__m512i>(keys); }
HVDS_INLINE Keys no_keys() { return Keys{}; }
HVDS_INLINE Keys both(Keys a, Keys b) { return a & b; }
HVDS_INLINE Keys sum(Keys a, Keys b) { return a + b; }
HVDS_INLINE Keys larger(Keys a, Keys b) { return reinterpret_cast<Keys>(_mm512_max_epi32(raw(a), raw(b))); }
HVDS_INLINE Keys iota() { return Keys{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; }

HVDS_INLINE Keys load_bits(const uint32_t* from) { return reinterpret_cast<Keys>(_mm512_loadu_si512(from)); }
HVDS_INLINE Keys load_bits(const uint16_t* from) {
  return reinterpret_cast<Keys>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
}

HVDS_INLINE void store_keys(RowKey* to, Keys keys) { _mm512_storeu_si512(to, raw(keys)); }
HVDS_INLINE void store_bits(uint32_t* to, Keys bits) { _mm512_storeu_si512(to, raw(bits)); }
HVDS_INLINE void store_bits(uint16_t* to, Keys bits) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(raw(bits)));
}
HVDS_INLINE void stream_bits(uint32_t* to, Keys bits) {
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to), raw(bits));
}
HVDS_INLINE void stream_bits(uint16_t* to, Keys bits) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(raw(bits)));
}

// A bound minus one, as a vector, so that the signed comparison "greater than" works for all bounds from 0 to 2^31.
HVDS_INLINE Keys bound_of(RowKey key) { return repeated(static_cast<int32_t>(key - 1)); }

// The mask as a number whose upper half is zero. In assembly, because GCC 12 may store the mask as two bytes and load
// four.
HVDS_INLINE unsigned reaching(Keys keys, Keys bound) {
  const __mmask16 mask = _mm512_cmpgt_epi32_mask(raw(keys), raw(bound));
  unsigned number;
  __asm__("kmovw %1, %0" : "=r"(number) : "k"(mask));
  return number;
}

HVDS_INLINE Keys one_more_where(Keys counts, Keys keys, Keys bound) {
  const __mmask16 mask = _mm512_cmpgt_epi32_mask(raw(keys), raw(bound));
  return reinterpret_cast<Keys>(_mm512_mask_add_epi32(raw(counts), mask, raw(counts), _mm512_set1_epi32(1)));
}

HVDS_INLINE int64_t sum_of(Keys counts) { return _mm512_reduce_add_epi32(raw(counts)); }

HVDS_INLINE Keys where(unsigned mask, Keys bits) {
  return reinterpret_cast<Keys>(_mm512_maskz_mov_epi32(static_cast<__mmask16>(mask), raw(bits)));
}

// Writes the entries whose bit is set, one after the other; up to kWidth entries are overwritten.
HVDS_INLINE void compress(void* to, Keys entries, unsigned mask) {
  _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(static_cast<__mmask16>(mask), raw(entries)));
}

}  // namespace
}  // namespace avx512
}  // namespace hvds

#include "rows_kernels.inc"

#endif  // __x86_64__ && __GNUC__
