// The inner loops of QSGD in 16-byte vectors: SSE2 on x86-64, elsewhere whatever the compiler makes of them.
#include <cmath>
#include <cstring>

#include "../common/vectors_base.h"
#include "quantize_kernels.h"

#define HVDS_ISA base
#define HVDS_QUANTIZE kBaseQuantize

namespace hvds {
namespace base {
namespace {

typedef uint32_t Words __attribute__((vector_size(16)));

HVDS_INLINE Words words(Ints ints) { return reinterpret_cast<Words>(ints); }
HVDS_INLINE Ints ints(Words words) { return reinterpret_cast<Ints>(words); }

HVDS_INLINE Ints plus(Ints a, Ints b) { return ints(words(a) + words(b)); }
HVDS_INLINE Ints counted_from(int32_t first) { return plus(repeated(first), Ints{0, 1, 2, 3}); }

HVDS_INLINE Ints larger(Ints a, Ints b) { return a > b ? a : b; }
HVDS_INLINE Ints smaller(Ints a, Ints b) { return a < b ? a : b; }
HVDS_INLINE Ints times(Ints a, Ints b) { return ints(words(a) * words(b)); }
template <int kBy>
HVDS_INLINE Ints shifted_right(Ints a) { return ints(words(a) >> kBy); }

HVDS_INLINE Ints magnitude_bits(Floats values) { return reinterpret_cast<Ints>(values) & repeated(0x7fffffff); }

#if defined(__SSE2__)
HVDS_INLINE Ints rounded(Floats values) { return reinterpret_cast<Ints>(_mm_cvtps_epi32(values)); }
#else
HVDS_INLINE Ints rounded(Floats values) {
  Ints result;
  for (int lane = 0; lane < kWidth; ++lane) result[lane] = static_cast<int32_t>(std::nearbyint(values[lane]));
  return result;
}
#endif

template <int kBits>
HVDS_INLINE void put(const Ints* levels, uint8_t* codes) {
  constexpr int kInAByte = 8 / kBits;
  for (int byte = 0; byte < 64 / kInAByte; ++byte) {
    int32_t packed = 0;
    for (int i = 0; i < kInAByte; ++i) {
      const int value = byte * kInAByte + i;
      packed |= (levels[value / kWidth][value % kWidth] & ((1 << kBits) - 1)) << i * kBits;
    }
    codes[byte] = static_cast<uint8_t>(packed);
  }
}

template <int kBits>
struct Decoder {
  Floats step, scale;

  HVDS_INLINE explicit Decoder(const BucketRule& rule) : step(repeated(rule.step)), scale(repeated(rule.scale)) {}

  HVDS_INLINE Floats values(const uint8_t* codes) const {
    uint32_t word = 0;
    memcpy(&word, codes, kWidth * kBits / 8);
    Floats values;
    for (int lane = 0; lane < kWidth; ++lane) {
      values[lane] = static_cast<float>(static_cast<int32_t>(word << (32 - kBits - lane * kBits)) >> (32 - kBits));
    }
    values = values * step;
    values = values > scale ? scale : values;
    return values < -scale ? -scale : values;
  }
};

}  // namespace
}  // namespace base
}  // namespace hvds

#include "quantize_kernels.inc"
