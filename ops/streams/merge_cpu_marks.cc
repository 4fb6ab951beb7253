// Converts a bitmap to a list of rows.
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

#include "../common/cpu_features.h"
#include "merge_walk.h"

namespace hvds {
namespace {

#define HVDS_INLINE inline __attribute__((always_inline))

constexpr uint64_t kLast = uint64_t{1} << 63;  // a sentinel, so that there is a lowest bit even if no row is left
constexpr size_t kGroup = 64;                  // words that are examined together

// Which words of a group are not 0.
uint64_t occupied(const uint64_t* words) {
  uint64_t occupied = 0;
  for (size_t word = 0; word < kGroup; ++word) occupied |= uint64_t{words[word] != 0} << word;
  return occupied;
}

// Writes two rows at a time whether they exist or not, as the number of rows in a word is hard to predict.
HVDS_INLINE int32_t* list_word(uint64_t rest, int32_t first, int32_t* out) {
  int32_t* const end = out + __builtin_popcountll(rest);
  while (out < end) {
    for (int i = 0; i < 2; ++i, rest &= rest - 1) out[i] = first + __builtin_ctzll(rest | kLast);
    out += 2;
  }
  return end;
}

// Lists and clears the occupied words of a group.
HVDS_INLINE int32_t* list_group(uint64_t* words, uint64_t occupied, size_t first, int32_t* out) {
  for (; occupied != 0; occupied &= occupied - 1) {
    const auto word = static_cast<size_t>(__builtin_ctzll(occupied));
    out = list_word(words[word], static_cast<int32_t>((first + word) * 64), out);
    words[word] = 0;
  }
  return out;
}

int64_t list(uint64_t* words, size_t number, int32_t* rows) {
  int32_t* out = rows;
  for (size_t group = 0; group < number; group += kGroup) {
    out = list_group(words + group, occupied(words + group), group, out);
  }
  return out - rows;
}

HVDS_INLINE int64_t count(const uint64_t* words, size_t number) {
  int64_t count = 0;
  for (size_t word = 0; word < number; ++word) count += __builtin_popcountll(words[word]);
  return count;
}

#if defined(__x86_64__) && defined(__GNUC__)
#define HVDS_WITH_BITS __attribute__((target("avx2,bmi,bmi2,popcnt")))

HVDS_WITH_BITS inline uint64_t occupied_with_bits(const uint64_t* words) {
  uint64_t empty = 0;
  for (size_t word = 0; word < kGroup; word += 4) {
    const __m256i four = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words + word));
    const __m256i zeros = _mm256_cmpeq_epi64(four, _mm256_setzero_si256());
    empty |= static_cast<uint64_t>(_mm256_movemask_pd(_mm256_castsi256_pd(zeros))) << word;
  }
  return ~empty;
}

HVDS_WITH_BITS int64_t list_with_bits(uint64_t* words, size_t number, int32_t* rows) {
  int32_t* out = rows;
  for (size_t group = 0; group < number; group += kGroup) {
    out = list_group(words + group, occupied_with_bits(words + group), group, out);
  }
  return out - rows;
}

HVDS_WITH_BITS int64_t count_with_bits(const uint64_t* words, size_t number) { return count(words, number); }
#endif

}  // namespace

static_assert(Marks::kMultiple == 64 * kGroup, "a block is made of whole groups");

int64_t Marks::list(int32_t* rows) {
#if defined(__x86_64__) && defined(__GNUC__)
  if (hvds_isa() >= HVDS_AVX2) return list_with_bits(words_.data(), words_.size(), rows);
#endif
  return hvds::list(words_.data(), words_.size(), rows);
}

int64_t Marks::count() const {
#if defined(__x86_64__) && defined(__GNUC__)
  if (hvds_isa() >= HVDS_AVX2) return count_with_bits(words_.data(), words_.size());
#endif
  return hvds::count(words_.data(), words_.size());
}

}  // namespace hvds
