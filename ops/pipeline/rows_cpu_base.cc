// The loops over rows in 16-byte vectors: SSE2 on x86-64, elsewhere whatever the compiler makes of them.
#include <cstring>

#include "../common/vectors_base.h"
#include "rows_kernels.h"

#define HVDS_ISA base
#define HVDS_ROWS kBaseRows

namespace hvds {
namespace base {
namespace {

using Keys = Ints;

HVDS_INLINE Keys no_keys() { return Keys{}; }
HVDS_INLINE Keys both(Keys a, Keys b) { return a & b; }
HVDS_INLINE Keys sum(Keys a, Keys b) { return a + b; }
HVDS_INLINE Keys larger(Keys a, Keys b) { return a > b ? a : b; }
HVDS_INLINE Keys iota() { return Keys{0, 1, 2, 3}; }

HVDS_INLINE Keys load_bits(const uint32_t* from) {
  Keys bits;
  memcpy(&bits, from, sizeof bits);
  return bits;
}
HVDS_INLINE Keys load_bits(const uint16_t* from) { return Keys{from[0], from[1], from[2], from[3]}; }

HVDS_INLINE void store_keys(RowKey* to, Keys keys) { memcpy(to, &keys, sizeof keys); }
HVDS_INLINE void store_bits(uint32_t* to, Keys bits) { store_keys(to, bits); }
HVDS_INLINE void store_bits(uint16_t* to, Keys bits) {
  for (int lane = 0; lane < kWidth; ++lane) to[lane] = static_cast<uint16_t>(bits[lane]);
}
HVDS_INLINE void stream_bits(uint32_t* to, Keys bits) {
  stream(reinterpret_cast<float*>(to), reinterpret_cast<Floats>(bits));
}
HVDS_INLINE void stream_bits(uint16_t* to, Keys bits) { store_bits(to, bits); }  // only eight bytes

// A bound minus one, as a vector: SSE2 has only a signed "greater than", which works for all bounds from 0 to 2^31.
HVDS_INLINE Keys bound_of(RowKey key) { return repeated(static_cast<int32_t>(key - 1)); }

HVDS_INLINE unsigned reaching(Keys keys, Keys bound) {
  const Keys greater = keys > bound;
#if defined(__SSE2__)
  return static_cast<unsigned>(_mm_movemask_ps(reinterpret_cast<__m128>(greater)));
#else
  return (greater[0] & 1) | (greater[1] & 2) | (greater[2] & 4) | (greater[3] & 8);
#endif
}

HVDS_INLINE Keys one_more_where(Keys counts, Keys keys, Keys bound) { return counts - (keys > bound); }

HVDS_INLINE int64_t sum_of(Keys counts) { return int64_t{counts[0]} + counts[1] + counts[2] + counts[3]; }

HVDS_INLINE Keys where(unsigned mask, Keys bits) {
  const Keys lanes{1, 2, 4, 8};
  return bits & ((repeated(static_cast<int32_t>(mask)) & lanes) == lanes);
}

// Writes the entries whose bit is set, one after the other; kWidth entries are overwritten. Without branches, as they
// would be unpredictable.
HVDS_INLINE void compress(void* to, Keys entries, unsigned mask) {
  auto* const out = static_cast<int32_t*>(to);
  unsigned found = 0;
  for (int lane = 0; lane < kWidth; ++lane) {
    out[found] = entries[lane];
    found += mask >> lane & 1;
  }
}

}  // namespace
}  // namespace base
}  // namespace hvds

#include "rows_kernels.inc"
