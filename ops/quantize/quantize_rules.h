// The part of QSGD's arithmetic (quantize.h) that does not depend on the instruction set.
#ifndef HVD_SPARSE_OPS_QUANTIZE_RULES_H_
#define HVD_SPARSE_OPS_QUANTIZE_RULES_H_

#include <cstdint>
#include <cstring>

#include "quantize.h"
#include "../common/elements.h"

namespace hvds {

constexpr int kFractionBits = 16;  // of a level before rounding
constexpr float kLeastStep = 4.930380657631324e-32f;  // 2^-104, so that the factor is finite
constexpr uint32_t kFirstFactor = 0x7feb352du;
constexpr uint32_t kSecondFactor = 0x846ca68bu;

// One hash serves two elements. Element j of a bucket that begins with element number `first` uses the hash of
// i = first + j / 32 * 16 + j % 16, modulo 2^32:
//   x = i ^ before; x = (x ^ x >> 16) * kFirstFactor + between; x = (x ^ x >> 15) * kSecondFactor,
// of which it draws the upper 16 bits if j / 16 is even, else the lower 16 bits of x ^ x >> 16. The keys are a hash of
// the seed; the steps are those of a well-tested integer hash (lowbias32).
struct RandomKeys {
  uint32_t before, between;

  explicit RandomKeys(uint64_t seed) {
    uint64_t mixed = seed + 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
    mixed ^= mixed >> 31;
    before = static_cast<uint32_t>(mixed);
    between = static_cast<uint32_t>(mixed >> 32);
  }
};

inline int32_t levels_of(int bits) { return (1 << (bits - 1)) - 1; }

// How the values of one bucket are coded.
struct BucketRule {
  float scale;  // 0 if all levels are 0
  float step;
  float factor;  // from a magnitude to its level in units of 2^-kFractionBits
  int32_t levels;

  BucketRule(float norm, int bits) : scale(norm), step(0), factor(0), levels(levels_of(bits)) {
    step = norm / static_cast<float>(levels);
    if (step < kLeastStep) {
      scale = step = 0;
      return;
    }
    factor = static_cast<float>(1 << kFractionBits) / step;
  }

  float decoded(int32_t level) const {
    const float magnitude = static_cast<float>(level < 0 ? -level : level) * step;
    const float limited = magnitude < scale ? magnitude : scale;
    return level < 0 ? -limited : limited;
  }
};

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_QUANTIZE_RULES_H_
