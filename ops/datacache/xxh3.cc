// XXH3, 64 bits, written from xxHash's specification; the names of the steps are the specification's.
#include <algorithm>
#include <cstring>

#include "checksums.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the specification reads words in little-endian order");

namespace {

constexpr uint64_t kPrime32_1 = 0x9E3779B1U, kPrime32_2 = 0x85EBCA77U, kPrime32_3 = 0xC2B2AE3DU;
constexpr uint64_t kPrime64_1 = 0x9E3779B185EBCA87ULL, kPrime64_2 = 0xC2B2AE3D27D4EB4FULL;
constexpr uint64_t kPrime64_3 = 0x165667B19E3779F9ULL, kPrime64_4 = 0x85EBCA77C2B2AE63ULL;
constexpr uint64_t kPrime64_5 = 0x27D4EB2F165667C5ULL;
constexpr uint64_t kMix1 = 0x165667919E3779F9ULL, kMix2 = 0x9FB21C651E98DF25ULL;

constexpr size_t kSecretBytes = 192, kStripe = 64, kBlockStripes = 16;
constexpr size_t kScramble = kSecretBytes - kStripe;  // where the scrambling key starts in the secret
constexpr size_t kShort = 240;                        // the longest input of the methods for short inputs

alignas(64) constexpr uint8_t kSecret[kSecretBytes] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4, 0x6d, 0xe9,
    0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78,
    0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6,
    0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f,
    0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31,
    0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff,
    0xfa, 0x13, 0x63, 0xeb, 0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
    0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

uint64_t load64(const uint8_t* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

uint32_t load32(const uint8_t* p) {
  uint32_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

uint64_t rotate(uint64_t x, int by) { return x << by | x >> (64 - by); }

uint64_t folded_product(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t avalanche(uint64_t x) {
  x = (x ^ x >> 37) * kMix1;
  return x ^ x >> 32;
}

uint64_t avalanche_xxh64(uint64_t x) {
  x = (x ^ x >> 33) * kPrime64_2;
  x = (x ^ x >> 29) * kPrime64_3;
  return x ^ x >> 32;
}

// ---- up to 240 bytes ----

uint64_t hash_1_to_3(const uint8_t* input, size_t length, uint64_t seed) {
  const uint32_t combined = static_cast<uint32_t>(input[length - 1]) | static_cast<uint32_t>(length) << 8 |
                            static_cast<uint32_t>(input[0]) << 16 | static_cast<uint32_t>(input[length >> 1]) << 24;
  return avalanche_xxh64(((load32(kSecret) ^ load32(kSecret + 4)) + seed) ^ combined);
}

uint64_t hash_4_to_8(const uint8_t* input, size_t length, uint64_t seed) {
  const uint64_t modified = seed ^ static_cast<uint64_t>(__builtin_bswap32(static_cast<uint32_t>(seed))) << 32;
  const uint64_t combined = load32(input + length - 4) | static_cast<uint64_t>(load32(input)) << 32;
  uint64_t value = ((load64(kSecret + 8) ^ load64(kSecret + 16)) - modified) ^ combined;
  value ^= rotate(value, 49) ^ rotate(value, 24);
  value *= kMix2;
  value ^= (value >> 35) + length;
  value *= kMix2;
  return value ^ value >> 28;
}

uint64_t hash_9_to_16(const uint8_t* input, size_t length, uint64_t seed) {
  const uint64_t low = ((load64(kSecret + 24) ^ load64(kSecret + 32)) + seed) ^ load64(input);
  const uint64_t high = ((load64(kSecret + 40) ^ load64(kSecret + 48)) - seed) ^ load64(input + length - 8);
  return avalanche(length + __builtin_bswap64(low) + high + folded_product(low, high));
}

uint64_t mix_step(const uint8_t* data, size_t secret, uint64_t seed) {
  return folded_product(load64(data) ^ (load64(kSecret + secret) + seed),
                        load64(data + 8) ^ (load64(kSecret + secret + 8) - seed));
}

uint64_t hash_17_to_128(const uint8_t* input, size_t length, uint64_t seed) {
  uint64_t sum = length * kPrime64_1;
  for (size_t i = 0; i <= (length - 1) >> 5; ++i) {
    sum += mix_step(input + i * 16, i * 32, seed);
    sum += mix_step(input + length - i * 16 - 16, i * 32 + 16, seed);
  }
  return avalanche(sum);
}

uint64_t hash_129_to_240(const uint8_t* input, size_t length, uint64_t seed) {
  uint64_t sum = length * kPrime64_1;
  for (size_t i = 0; i < 8; ++i) sum += mix_step(input + i * 16, i * 16, seed);
  sum = avalanche(sum);
  for (size_t i = 8; i < length >> 4; ++i) sum += mix_step(input + i * 16, (i - 8) * 16 + 3, seed);
  return avalanche(sum + mix_step(input + length - 16, 119, seed));
}

// ---- more than 240 bytes ----

// Accumulates `stripes` stripes into the lanes, which are scrambled after each block. With kCopy the input is also
// written to `copy`, and the copied bytes are hashed: each byte is read once.
using Accumulate = void (*)(uint64_t* lanes, const uint8_t* input, uint8_t* copy, const uint8_t* secret, size_t stripes);

void accumulate_stripe(uint64_t* lanes, const uint8_t* stripe, const uint8_t* secret) {
  for (size_t i = 0; i < 8; ++i) {
    const uint64_t data = load64(stripe + i * 8);
    const uint64_t value = data ^ load64(secret + i * 8);
    lanes[i ^ 1] += data;
    lanes[i] += (value & 0xFFFFFFFFU) * (value >> 32);
  }
}

void scramble(uint64_t* lanes, const uint8_t* secret) {
  for (size_t i = 0; i < 8; ++i) {
    lanes[i] = (lanes[i] ^ lanes[i] >> 47 ^ load64(secret + kScramble + i * 8)) * kPrime32_1;
  }
}

template <bool kCopy>
void accumulate_portable(uint64_t* lanes, const uint8_t* input, uint8_t* copy, const uint8_t* secret, size_t stripes) {
  for (size_t n = 0; n < stripes; ++n) {
    uint8_t stripe[kStripe];
    std::memcpy(stripe, input + n * kStripe, kStripe);
    if (kCopy) std::memcpy(copy + n * kStripe, stripe, kStripe);
    accumulate_stripe(lanes, stripe, secret + n % kBlockStripes * 8);
    if (n % kBlockStripes == kBlockStripes - 1) scramble(lanes, secret);
  }
}

#if defined(__x86_64__) && defined(__GNUC__)
#define HVDS_AVX2 __attribute__((target("avx2"), always_inline)) inline

HVDS_AVX2 __m256i load256(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i*>(at)); }

HVDS_AVX2 __m256i accumulated(__m256i sum, __m256i data, const uint8_t* secret) {
  const __m256i value = _mm256_xor_si256(data, load256(secret));
  const __m256i product = _mm256_mul_epu32(value, _mm256_srli_epi64(value, 32));
  return _mm256_add_epi64(product, _mm256_add_epi64(sum, _mm256_shuffle_epi32(data, _MM_SHUFFLE(1, 0, 3, 2))));
}

HVDS_AVX2 __m256i scrambled(__m256i lanes, const uint8_t* secret) {
  const __m256i prime = _mm256_set1_epi64x(static_cast<int64_t>(kPrime32_1));
  const __m256i value = _mm256_xor_si256(_mm256_xor_si256(lanes, _mm256_srli_epi64(lanes, 47)), load256(secret));
  const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(value, 32), prime);
  return _mm256_add_epi64(_mm256_mul_epu32(value, prime), _mm256_slli_epi64(high, 32));
}

template <bool kCopy>
__attribute__((target("avx2"))) void accumulate_avx2(uint64_t* lanes, const uint8_t* input, uint8_t* copy,
                                                     const uint8_t* secret, size_t stripes) {
  __m256i low = load256(lanes), high = load256(lanes + 4);
  for (size_t n = 0; n < stripes; ++n) {
    const uint8_t *at = input + n * kStripe, *key = secret + n % kBlockStripes * 8;
    const __m256i first = load256(at), second = load256(at + 32);
    if (kCopy) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(copy + n * kStripe), first);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(copy + n * kStripe + 32), second);
    }
    low = accumulated(low, first, key);
    high = accumulated(high, second, key + 32);
    if (n % kBlockStripes == kBlockStripes - 1) {
      low = scrambled(low, secret + kScramble);
      high = scrambled(high, secret + kScramble + 32);
    }
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), low);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes + 4), high);
}

template <bool kCopy>
__attribute__((target("avx512f"))) void accumulate_avx512(uint64_t* lanes, const uint8_t* input, uint8_t* copy,
                                                          const uint8_t* secret, size_t stripes) {
  const __m512i prime = _mm512_set1_epi64(static_cast<int64_t>(kPrime32_1));
  __m512i sums = _mm512_loadu_si512(lanes);
  for (size_t n = 0; n < stripes; ++n) {
    const __m512i data = _mm512_loadu_si512(input + n * kStripe);
    if (kCopy) _mm512_storeu_si512(copy + n * kStripe, data);
    const __m512i value = _mm512_xor_si512(data, _mm512_loadu_si512(secret + n % kBlockStripes * 8));
    const __m512i product = _mm512_mul_epu32(value, _mm512_srli_epi64(value, 32));
    sums = _mm512_add_epi64(product, _mm512_add_epi64(sums, _mm512_shuffle_epi32(data, _MM_PERM_BADC)));
    if (n % kBlockStripes != kBlockStripes - 1) continue;
    const __m512i mixed = _mm512_xor_si512(_mm512_xor_si512(sums, _mm512_srli_epi64(sums, 47)),
                                           _mm512_loadu_si512(secret + kScramble));
    const __m512i high = _mm512_mul_epu32(_mm512_srli_epi64(mixed, 32), prime);
    sums = _mm512_add_epi64(_mm512_mul_epu32(mixed, prime), _mm512_slli_epi64(high, 32));
  }
  _mm512_storeu_si512(lanes, sums);
}

template <bool kCopy>
Accumulate choose() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return accumulate_avx512<kCopy>;
  return __builtin_cpu_supports("avx2") ? accumulate_avx2<kCopy> : accumulate_portable<kCopy>;
}
#else
template <bool kCopy>
Accumulate choose() {
  return accumulate_portable<kCopy>;
}
#endif

template <bool kCopy>
uint64_t hash_long(const uint8_t* input, uint8_t* copy, size_t length, uint64_t seed) {
  static const Accumulate accumulate = choose<kCopy>();
  alignas(64) uint8_t secret[kSecretBytes];
  for (size_t i = 0; i < kSecretBytes; i += 16) {
    const uint64_t pair[2] = {load64(kSecret + i) + seed, load64(kSecret + i + 8) - seed};
    std::memcpy(secret + i, pair, sizeof pair);
  }
  alignas(64) uint64_t lanes[8] = {kPrime32_3, kPrime64_1, kPrime64_2, kPrime64_3,
                                   kPrime64_4, kPrime32_2, kPrime64_5, kPrime32_1};
  const size_t stripes = (length - 1) / kStripe;
  accumulate(lanes, input, copy, secret, stripes);
  if (kCopy) std::memcpy(copy + stripes * kStripe, input + stripes * kStripe, length - stripes * kStripe);
  accumulate_stripe(lanes, (kCopy ? copy : input) + length - kStripe, secret + kSecretBytes - 71);
  uint64_t result = length * kPrime64_1;
  for (size_t i = 0; i < 4; ++i) {
    result += folded_product(lanes[2 * i] ^ load64(secret + 11 + 16 * i), lanes[2 * i + 1] ^ load64(secret + 19 + 16 * i));
  }
  return avalanche(result);
}

uint64_t hash_short(const uint8_t* input, size_t length, uint64_t seed) {
  if (length == 0) return avalanche_xxh64(seed ^ load64(kSecret + 56) ^ load64(kSecret + 64));
  if (length <= 3) return hash_1_to_3(input, length, seed);
  if (length <= 8) return hash_4_to_8(input, length, seed);
  if (length <= 16) return hash_9_to_16(input, length, seed);
  if (length <= 128) return hash_17_to_128(input, length, seed);
  return hash_129_to_240(input, length, seed);
}

}  // namespace

extern "C" {

uint64_t datacache_xxh3(const void* data, size_t length, uint64_t seed) {
  const auto* input = static_cast<const uint8_t*>(data);
  return length <= kShort ? hash_short(input, length, seed) : hash_long<false>(input, nullptr, length, seed);
}

uint64_t datacache_xxh3_copy(void* to, const void* from, size_t length, uint64_t seed) {
  auto* copy = static_cast<uint8_t*>(to);
  if (length > kShort) return hash_long<true>(static_cast<const uint8_t*>(from), copy, length, seed);
  if (length > 0) std::memcpy(copy, from, length);
  return hash_short(copy, length, seed);
}

}  // extern "C"
