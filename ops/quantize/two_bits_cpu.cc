#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "../common/cpu_features.h"
#include "../common/elements.h"
#include "../common/float_mode.h"
#include "magnitudes.h"

namespace hvds {
namespace {

constexpr int kLanes = 16;               // of each sum
constexpr int kRefinements = 4;          // of each split
constexpr int64_t kSample = 1 << 14;     // values from which the splits are found
constexpr int64_t kChunk = 64 * kLanes;  // values coded at a time

constexpr int kHalf = kLanes / 2;        // values in a vector, which narrow instruction sets take in parts
constexpr int kHalves = 2;

typedef float Floats __attribute__((vector_size(4 * kHalf)));
typedef double Doubles __attribute__((vector_size(8 * kHalf)));
typedef int32_t Ints __attribute__((vector_size(4 * kHalf)));
typedef uint8_t Bytes __attribute__((vector_size(kHalf)));

struct Passes {
  void (*code_groups)(const float* values, int64_t groups, const float* above, uint8_t* codes, double (*sums)[kLanes]);
  void (*pack_codes)(const uint8_t* codes, int64_t bytes, uint8_t* packed);
  void (*count_codes)(const uint8_t* codes, int64_t count, int64_t* counts);
  bool (*all_finite)(const float* values, int64_t count);
};

namespace base {
#define HVDS_TARGET
#include "two_bits_passes.inc"
#undef HVDS_TARGET
}  // namespace base

#if defined(__x86_64__) && defined(__GNUC__)
namespace avx2 {
#define HVDS_TARGET __attribute__((target("avx2")))
#include "two_bits_passes.inc"
#undef HVDS_TARGET
}  // namespace avx2

namespace avx512 {
#define HVDS_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")))
#include "two_bits_passes.inc"
#undef HVDS_TARGET
}  // namespace avx512
#endif

const Passes& passes() {
#if defined(__x86_64__) && defined(__GNUC__)
  if (hvds_isa() >= HVDS_AVX512) return avx512::kPasses;
  if (hvds_isa() >= HVDS_AVX2) return avx2::kPasses;
#endif
  return base::kPasses;
}

int negative(float value) { return value < 0; }

// The values that share a code.
struct Part {
  double sum = 0;
  int64_t count = 0;

  double mean() const { return count == 0 ? 0 : sum / static_cast<double>(count); }
};

// The magnitudes above which values count as large, of positive and of negative values.
struct Splits {
  double above[2];

  int code(float value) const {
    const int sign = negative(value);
    return sign | (std::fabs(value) > above[sign]) << 1;
  }
};

struct Parts {
  Part of[HVDS_TWO_BITS_SCALES];

  Parts(const std::vector<float>& values, const Splits& splits) {
    for (const float value : values) {
      Part& part = of[splits.code(value)];
      part.sum += std::fabs(value);
      ++part.count;
    }
  }
};

Splits find_splits(const std::vector<float>& values) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  const Parts signs(values, {{kNone, kNone}});
  Splits splits{{signs.of[0].mean(), signs.of[1].mean()}};
  for (int round = 0; round < kRefinements; ++round) {
    const Parts parts(values, splits);
    for (int sign = 0; sign < 2; ++sign) {
      const Part &small = parts.of[sign], &large = parts.of[sign | 2];
      if (small.count > 0 && large.count > 0) splits.above[sign] = (small.mean() + large.mean()) / 2;
    }
  }
  return splits;
}

// Every n-th value, at most kSample of them.
std::vector<float> sample(const float* values, int64_t count) {
  const int64_t stride = std::max<int64_t>(1, (count + kSample - 1) / kSample);
  std::vector<float> found;
  found.reserve(static_cast<size_t>(count / stride + 1));
  for (int64_t i = 0; i < count; i += stride) found.push_back(values[i]);
  return found;
}

// The largest float that is not above a number; a float is above the one exactly if it is above the other.
float not_above(double number) {
  const float nearest = static_cast<float>(number);
  return nearest > number ? std::nextafter(nearest, 0.0f) : nearest;
}

// Codes a vector, and finds the mean magnitude of each code.
class Coder {
 public:
  Coder(const Splits& splits, uint8_t* codes)
      : above_{not_above(splits.above[0]), not_above(splits.above[1])}, packed_(codes) {}

  // The values follow those of the call before; a count that is not a multiple of kLanes only in the last call.
  void code(const float* values, int64_t count) {
    alignas(64) uint8_t codes[kChunk + kLanes] = {};
    const int64_t whole = count / kLanes;
    passes().code_groups(values, whole, above_, codes, sums_);
    for (int64_t i = whole * kLanes; i < count; ++i) {
      const int sign = negative(values[i]);
      codes[i] = static_cast<uint8_t>(sign | (std::fabs(values[i]) > above_[sign]) << 1);
      sums_[codes[i]][i % kLanes] += std::fabs(values[i]);
    }
    passes().count_codes(codes, count, counts_);
    const int64_t bytes = (count + 3) / 4;
    passes().pack_codes(codes, bytes, packed_);
    packed_ += bytes;
  }

  // The mean of a code's values; 0 if there are none.
  float mean(int code) {
    double* lanes = sums_[code];
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    }
    return counts_[code] == 0 ? 0 : static_cast<float>(lanes[0] / static_cast<double>(counts_[code]));
  }

 private:
  const float above_[2];
  uint8_t* packed_;
  double sums_[HVDS_TWO_BITS_SCALES][kLanes] = {};
  int64_t counts_[HVDS_TWO_BITS_SCALES] = {};
};

int64_t first_not_finite(const float* values, int64_t count) {
  if (passes().all_finite(values, count)) return -1;
  return std::find_if_not(values, values + count, [](float value) { return std::isfinite(value); }) - values;
}

}  // namespace
}  // namespace hvds

extern "C" int64_t hvds_two_bits(const float* values, int64_t count, uint8_t* codes, float* scales) {
  const hvds::StandardFloats standard;
  const int64_t faulty = hvds::first_not_finite(values, count);
  if (faulty >= 0) return faulty;
  hvds::Coder coder(hvds::find_splits(hvds::sample(values, count)), codes);
  for (int64_t at = 0; at < count; at += hvds::kChunk) coder.code(values + at, std::min(hvds::kChunk, count - at));
  for (int code = 0; code < HVDS_TWO_BITS_SCALES; ++code) scales[code] = coder.mean(code);
  return -1;
}

extern "C" void hvds_from_two_bits(const uint8_t* codes, const float* scales, int64_t count, float* values) {
  float levels[HVDS_TWO_BITS_SCALES];
  for (uint32_t code = 0; code < HVDS_TWO_BITS_SCALES; ++code) {
    levels[code] = hvds::float_of(hvds::bits_of(scales[code]) | (code & 1u) << 31);
  }
  float of_byte[256][4];
  for (int byte = 0; byte < 256; ++byte) {
    for (int place = 0; place < 4; ++place) of_byte[byte][place] = levels[byte >> 2 * place & 3];
  }
  for (int64_t byte = 0; byte < count / 4; ++byte) std::memcpy(values + 4 * byte, of_byte[codes[byte]], 16);
  for (int64_t i = count / 4 * 4; i < count; ++i) values[i] = levels[codes[i / 4] >> i % 4 * 2 & 3];
}
