// The rules of selection by magnitude on a GPU: plain functions of numbers, without memory or threads.
//
// All decisions that could be wrong are made here (what a sample implies, where a rank lies, what Algorithm 1 does,
// which entries win and where they go), so that the same code runs in the kernels and, under any C++ compiler, in the
// tests.
#ifndef HVD_SPARSE_OPS_SELECT_RULES_H_
#define HVD_SPARSE_OPS_SELECT_RULES_H_

#include <cmath>

#include "../common/elements.h"

namespace hvds {

// A magnitude |x| as an integer: the bits of a float32 without the sign. Keys compare like magnitudes, with NaN > Inf >
// every finite number; the order is total, so that non-finite input is harmless.
using Key = uint32_t;

constexpr Key kInfinityKey = 0x7f800000u;
constexpr Key kHighestKey = 0x7fffffffu;

HVDS_BOTH inline Key key_of(float value) { return bits_of(value) & kHighestKey; }

HVDS_BOTH inline float magnitude_of(Key key) { return float_of(key); }

template <typename Number>
HVDS_BOTH inline Number smaller(Number a, Number b) {
  return b < a ? b : a;
}

template <typename Number>
HVDS_BOTH inline Number larger(Number a, Number b) {
  return a < b ? b : a;
}

// ---- How the work is divided, from the sizes alone ----

constexpr uint32_t kTile = 4096;   // elements per block of the mean
constexpr uint32_t kLanes = 64;    // float32 partial sums per block of the mean
constexpr uint32_t kChunk = 256;   // entries whose winners one warp counts and emits, 32 at a time: hence not many

constexpr uint32_t kNeighbours = 4;  // adjacent elements per sampled position
constexpr uint32_t kSampleGroups = 4096;
constexpr uint32_t kSample = kSampleGroups * kNeighbours;

// Candidates allowed beyond the number that the sample predicts; tests reduce it to reach all paths with less data.
#ifndef HVDS_CANDIDATE_SLACK
#define HVDS_CANDIDATE_SLACK 65536
#endif

// How `kept` of `size` elements are selected. `rank` is the rank of the magnitude sought (1 = the largest): `kept` for
// the exact selection; for MSTopK the next one, which decides Algorithm 1's counts. `capacity` 0: no candidates are
// collected, every stage works on the whole vector.
struct Plan {
  uint32_t size;
  uint32_t kept;
  uint32_t rank;
  uint32_t sample_rank;
  uint32_t capacity;
  uint32_t tiles;
  uint32_t chunks;
};

HVDS_BOTH inline uint32_t pieces(uint32_t size, uint32_t piece) { return size / piece + (size % piece != 0); }

// If m sampled elements are expected among the `rank` largest, the sample's magnitude of rank m + 4 sqrt(m) + 4 is
// below the magnitude sought except once in tens of thousands of times. The capacity allows for the number of elements
// that pass it with the same margin. If that is half of the vector or more, collecting candidates does not pay off.
inline Plan make_plan(uint32_t size, uint32_t kept, bool mstopk) {
  const uint32_t rank = larger(mstopk && kept < size ? kept + 1 : kept, 1u);
  Plan plan{size, kept, rank, 0, 0, pieces(size, kTile), pieces(size, kChunk)};
  if (size < 2 * kSample) return plan;
  const double expected = double(plan.rank) * kSample / size;
  const double sample_rank = std::floor(expected + 4 * std::sqrt(expected) + 4);
  const double passing = (sample_rank + 4 * std::sqrt(sample_rank) + 4) * size / kSample;
  const double capacity = passing + HVDS_CANDIDATE_SLACK;
  if (capacity >= 0.5 * size) return plan;
  plan.sample_rank = uint32_t(sample_rank);
  plan.capacity = uint32_t(capacity);
  return plan;
}

// ---- Random numbers: a hashed counter ----

HVDS_BOTH inline uint64_t splitmix64(uint64_t seed) {
  uint64_t z = seed + 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// (splitmix64(seed) * range) >> 64 with the 128-bit product, in halves that do not overflow.
HVDS_BOTH inline uint32_t random_below(uint64_t seed, uint32_t range) {
  const uint64_t z = splitmix64(seed);
  const uint64_t carry = ((z & 0xffffffffull) * range) >> 32;
  return uint32_t(((z >> 32) * range + carry) >> 32);
}

// The first of the kNeighbours elements that sample group `group` reads: a jittered place in its share of the vector.
HVDS_BOTH inline uint32_t sample_position(uint32_t group, uint32_t size) {
  const uint64_t start = uint64_t(group) * size / kSampleGroups;
  const uint64_t end = uint64_t(group + 1) * size / kSampleGroups;
  return uint32_t(start) + random_below(group, uint32_t(end - start) - kNeighbours + 1);
}

// ---- Where a rank lies: three digits of a key, most significant first ----

constexpr int kDigits = 3;
constexpr int kDigitBits = 11;
constexpr int kBins = 1 << kDigitBits;

// The digits of key - base for keys in [base, top]; a narrow range gives fine digits.
struct Digits {
  Key base;
  int shift[kDigits];
};

HVDS_BOTH inline Digits make_digits(Key base, Key top) {
  int bits = 0;
  while (bits < 31 && ((top - base) >> bits) != 0) ++bits;
  Digits digits;
  digits.base = base;
  digits.shift[0] = larger(bits - kDigitBits, 0);
  digits.shift[1] = larger(bits - 2 * kDigitBits, 0);
  digits.shift[2] = 0;
  return digits;
}

// The digits 0 to `digit` of a key as one number.
HVDS_BOTH inline uint32_t prefix_of(const Digits& digits, Key key, int digit) {
  return (key - digits.base) >> digits.shift[digit];
}

HVDS_BOTH inline int width_of(const Digits& digits, int digit) {
  return digit == 0 ? kDigitBits : digits.shift[digit - 1] - digits.shift[digit];
}

HVDS_BOTH inline uint32_t bin_of(const Digits& digits, Key key, int digit) {
  return prefix_of(digits, key, digit) & ((1u << width_of(digits, digit)) - 1);
}

// Where a rank, counted from the largest, was found: the digits so far, and the rank among the keys that share them.
struct Place {
  uint32_t prefix;
  uint32_t rank;
};

HVDS_BOTH inline bool at_place(const Digits& digits, Key key, int digit, const Place& place) {
  return digit == 0 || prefix_of(digits, key, digit - 1) == place.prefix;
}

HVDS_BOTH inline Place narrowed(const Digits& digits, int digit, const Place& place, uint32_t bin, uint32_t above) {
  const uint32_t prefix = digit == 0 ? bin : (place.prefix << width_of(digits, digit)) | bin;
  return Place{prefix, place.rank - above};
}

// ---- The mean of Algorithm 1 ----

// Whether adding non-negative float32 numbers in float64 gives `total` in any order, because no partial sum needs more
// than 53 bits. `smallest` is the smallest non-zero key. All numbers are multiples of the value of its last bit, and
// float64 adds such multiples exactly below 2^53 of them; if the total is below that, so are all partial sums.
HVDS_BOTH inline bool sum_has_no_order(double total, Key smallest) {
  const uint64_t exponent = larger(smallest >> 23, 1u);          // the last bit is worth 2^(exponent - 150)
  const uint64_t bits = (exponent - 150 + 53 + 1023) << 52;      // 2^(exponent - 97) as a float64
  double limit;
  memcpy(&limit, &bits, sizeof limit);
  return total < limit;
}

// mean + ratio * (highest - mean) in float64, each step rounded: a fused multiply-add would give different bits.
HVDS_BOTH inline float sampled_threshold(float mean, float highest, double ratio) {
#if defined(__CUDA_ARCH__)
  return __double2float_rn(__dadd_rn(mean, __dmul_rn(ratio, __dsub_rn(highest, mean))));
#else
  const double above = double(highest) - mean;
  const double step = ratio * above;
  return float(mean + step);
#endif
}

// ---- Which entries win ----

// Entries with key >= sure win; of those with band <= key < sure, as many as are still missing. `literal`: these are a
// random window, and follow the sure ones (Algorithm 1). Otherwise they are the first ones, and all winners are in
// ascending order.
struct Thresholds {
  Key sure;
  Key band;
  bool literal;
};

// The exact selection, given the magnitude of the last element kept or of the first one not kept: either way, elements
// above it are kept, and the first of those equal to it, as far as there is room.
HVDS_BOTH inline Thresholds exact_thresholds(Key edge) { return Thresholds{edge + 1, edge, false}; }

// CommLib's Algorithm 1, lines 4 to 24, without counting: nnz <= k exactly if the threshold exceeds `beyond`, the
// magnitude of rank k + 1 (with k = d there is none, hence `all_fit`). Its sets are nested, so its bookkeeping reduces
// to the lowest threshold with nnz <= k and the highest with nnz > k. It has no answer if the former selects nothing
// (k1 = 0), or if the latter is missing or selects everything (thres2 is never set; if k1 = k then, both ways give the
// same indices): in these cases the exact selection is used.
HVDS_BOTH inline Thresholds replay(float mean, Key lowest, Key highest, Key beyond, bool all_fit, int samplings) {
  Key sure = ~Key{0};
  Key band = 0;
  double left = 0;
  double right = 1;
  for (int i = 0; i < samplings; ++i) {
    const double ratio = left + (right - left) / 2;
    const Key threshold = key_of(sampled_threshold(mean, magnitude_of(highest), ratio));
    if (all_fit || threshold > beyond) {
      right = ratio;
      sure = smaller(sure, threshold);
    } else {
      left = ratio;
      band = larger(band, threshold);
    }
  }
  const bool answered = sure <= highest && band > lowest;
  return answered ? Thresholds{sure, band, true} : exact_thresholds(beyond);
}

// Counts of sure entries (a) and of band entries (b), packed so that they are added as one number; neither sum reaches
// 2^32.
HVDS_BOTH inline uint64_t pack_counts(uint32_t a, uint32_t b) { return uint64_t(a) << 32 | b; }
HVDS_BOTH inline uint32_t sure_count(uint64_t counts) { return uint32_t(counts >> 32); }
HVDS_BOTH inline uint32_t band_count(uint64_t counts) { return uint32_t(counts); }

// The band entries that are taken: `taken` of them, starting at number `first`.
struct Window {
  uint32_t sure;
  uint32_t first;
  uint32_t taken;
  bool literal;
};

HVDS_BOTH inline Window make_window(uint64_t totals, uint32_t kept, bool literal, uint64_t seed) {
  const uint32_t sure = sure_count(totals);
  const uint32_t taken = kept - sure;
  const uint32_t first = literal ? random_below(seed, band_count(totals) - taken + 1) : 0;
  return Window{sure, first, taken, literal};
}

// The position of a sure entry, given the numbers of sure and band entries before it.
HVDS_BOTH inline uint32_t sure_position(const Window& window, uint32_t sure_before, uint32_t band_before) {
  return window.literal ? sure_before : sure_before + smaller(band_before, window.taken);
}

HVDS_BOTH inline bool band_wins(const Window& window, uint32_t band_before) {
  return band_before >= window.first && band_before - window.first < window.taken;
}

// The position of a band entry that wins.
HVDS_BOTH inline uint32_t band_position(const Window& window, uint32_t sure_before, uint32_t band_before) {
  return (window.literal ? window.sure : sure_before) + band_before - window.first;
}

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_SELECT_RULES_H_
