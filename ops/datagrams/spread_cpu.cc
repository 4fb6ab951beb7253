#include "spread.h"

#include <algorithm>
#include <cstring>

#include "../common/cpu_features.h"

// The compiler vectorizes the loops over a tile's columns, as wide as the target allows.
#if defined(__x86_64__) && defined(__GNUC__)
#define HVDS_DISPATCHED 1
#define HVDS_WITH_AVX2 __attribute__((target("avx2")))
#define HVDS_WITH_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")))
#endif
#define HVDS_INLINE inline __attribute__((always_inline))

namespace hvds {
namespace {

constexpr int64_t kMostRows = 64;
constexpr int64_t kColumns = 64;  // per tile: one word of signs for each row

HVDS_INLINE uint64_t word_of(uint64_t seed, int64_t index) {
  uint64_t mixed = seed + (static_cast<uint64_t>(index) + 1) * 0x9e3779b97f4a7c15u;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
  return mixed ^ (mixed >> 31);
}

// Flips the signs of a row where bits are set.
HVDS_INLINE void change_signs(float* row, uint64_t word) {
  uint32_t bits[kColumns];
  std::memcpy(bits, row, sizeof bits);
  const uint32_t halves[2] = {static_cast<uint32_t>(word), static_cast<uint32_t>(word >> 32)};
  for (int half = 0; half < 2; ++half) {
    for (int j = 0; j < 32; ++j) bits[32 * half + j] ^= (halves[half] << (31 - j)) & 0x80000000u;
  }
  std::memcpy(row, bits, sizeof bits);
}

HVDS_INLINE void butterflies(float (*rows)[kColumns], int64_t count) {
  for (int64_t half = 1; half < count; half *= 2) {
    for (int64_t first = 0; first < count; first += 2 * half) {
      for (int64_t row = first; row < first + half; ++row) {
        float* above = rows[row];
        float* below = rows[row + half];
        for (int64_t j = 0; j < kColumns; ++j) {
          const float a = above[j], b = below[j];
          above[j] = a + b;
          below[j] = a - b;
        }
      }
    }
  }
}

struct Block {
  const float* from;
  float* to;
  int64_t rows, length;  // length: of a row
  uint64_t seed;
};

template <bool kInverse>
HVDS_INLINE void transform(const Block& block) {
  alignas(64) float rows[kMostRows][kColumns];
  const float scale = 1.0f / static_cast<float>(block.rows);
  for (int64_t first = 0; first < block.length; first += kColumns) {
    const int64_t columns = std::min(kColumns, block.length - first);
    for (int64_t row = 0; row < block.rows; ++row) {
      if (columns < kColumns) std::memset(rows[row], 0, sizeof rows[row]);
      std::memcpy(rows[row], block.from + row * block.length + first, columns * sizeof(float));
      if (!kInverse) change_signs(rows[row], word_of(block.seed, first + row));
    }
    butterflies(rows, block.rows);
    for (int64_t row = 0; row < block.rows; ++row) {
      if (kInverse) {
        for (int64_t j = 0; j < kColumns; ++j) rows[row][j] *= scale;
        change_signs(rows[row], word_of(block.seed, first + row));
      }
      std::memcpy(block.to + row * block.length + first, rows[row], columns * sizeof(float));
    }
  }
}

template <bool kInverse>
void transform_anywhere(const Block& block) {
  transform<kInverse>(block);
}

#ifdef HVDS_DISPATCHED
template <bool kInverse>
HVDS_WITH_AVX2 void transform_avx2(const Block& block) {
  transform<kInverse>(block);
}

template <bool kInverse>
HVDS_WITH_AVX512 void transform_avx512(const Block& block) {
  transform<kInverse>(block);
}
#endif

template <bool kInverse>
void run(const float* from, float* to, int64_t length, int64_t segment, uint64_t seed) {
  const int64_t rows = hvds_spread_rows(length, segment);
  const Block block{from, to, rows, rows > 1 ? length / rows : 0, seed};
  const int64_t spread = block.rows * block.length;
  if (from != to) std::memcpy(to + spread, from + spread, (length - spread) * sizeof(float));
#ifdef HVDS_DISPATCHED
  if (hvds_isa() == HVDS_AVX512) return transform_avx512<kInverse>(block);
  if (hvds_isa() == HVDS_AVX2) return transform_avx2<kInverse>(block);
#endif
  transform_anywhere<kInverse>(block);
}

}  // namespace
}  // namespace hvds

int64_t hvds_spread_rows(int64_t length, int64_t segment) {
  int64_t rows = 1;
  while (2 * rows <= hvds::kMostRows && 2 * rows * segment <= length) rows *= 2;
  return rows;
}

void hvds_spread(const float* from, float* to, int64_t length, int64_t segment, uint64_t seed) {
  hvds::run<false>(from, to, length, segment, seed);
}

void hvds_gather_up(const float* from, float* to, int64_t length, int64_t segment, uint64_t seed) {
  hvds::run<true>(from, to, length, segment, seed);
}
