#include "siphash.h"

#include <cstring>

#include "../common/cpu_features.h"

// Hashing messages side by side pays off if a lane can be rotated in one instruction, which AVX-512 has.
#if defined(__x86_64__) && defined(__GNUC__)
#define HVDS_SIDE_BY_SIDE 1
#define HVDS_WIDE __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#endif

namespace hvds {
namespace {

// Words are little-endian, as on all machines that this is compiled for.
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "expected a little-endian machine");

inline uint64_t word_at(const uint8_t* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

// The last word: the rest of the message, and its length in the uppermost byte.
inline uint64_t last_word(const uint8_t* rest, int64_t bytes) {
  uint64_t word = static_cast<uint64_t>(bytes) << 56;
  for (int64_t i = 0; i < bytes % 8; ++i) word |= static_cast<uint64_t>(rest[i]) << 8 * i;
  return word;
}

// The state for one message, or with vectors for several, one per lane.
template <typename Word>
struct State {
  Word v0, v1, v2, v3;
};

template <typename Word>
__attribute__((always_inline)) inline void rotate(Word& word, int bits) {
  word = (word << bits) | (word >> (64 - bits));
}

template <typename Word>
__attribute__((always_inline)) inline void rounds(State<Word>& s, int count) {
  for (int i = 0; i < count; ++i) {
    s.v0 += s.v1;
    s.v2 += s.v3;
    rotate(s.v1, 13);
    rotate(s.v3, 16);
    s.v1 ^= s.v0;
    s.v3 ^= s.v2;
    rotate(s.v0, 32);
    s.v2 += s.v1;
    s.v0 += s.v3;
    rotate(s.v1, 17);
    rotate(s.v3, 21);
    s.v1 ^= s.v2;
    s.v3 ^= s.v0;
    rotate(s.v2, 32);
  }
}

template <typename Word>
__attribute__((always_inline)) inline State<Word> begin(const Word& k0, const Word& k1) {
  return {k0 ^ 0x736f6d6570736575u, k1 ^ (0x646f72616e646f6du ^ 0xee), k0 ^ 0x6c7967656e657261u,
          k1 ^ 0x7465646279746573u};
}

template <typename Word>
__attribute__((always_inline)) inline void take(State<Word>& s, const Word& word) {
  s.v3 ^= word;
  rounds(s, 2);
  s.v0 ^= word;
}

template <typename Word>
__attribute__((always_inline)) inline void end(State<Word>& s, Word& low, Word& high) {
  s.v2 ^= 0xee;
  rounds(s, 4);
  low = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
  s.v1 ^= 0xdd;
  rounds(s, 4);
  high = s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

#ifdef HVDS_SIDE_BY_SIDE
typedef uint64_t Lanes __attribute__((vector_size(64)));

constexpr int64_t kWorthLanes = 3;  // messages: all lanes together take as long as two single messages

// One word from each of HVDS_LANES messages.
HVDS_WIDE inline Lanes words_at(const uint8_t* const* messages, int64_t at) {
  Lanes words;
  for (int lane = 0; lane < HVDS_LANES; ++lane) words[lane] = word_at(messages[lane] + at);
  return words;
}

// All messages at once; unused lanes repeat the first message.
HVDS_WIDE void side_by_side(const uint8_t* const* keys, const uint8_t* const* messages, int64_t count, int64_t bytes,
                            uint8_t* tags) {
  const uint8_t *whose[HVDS_LANES], *lanes[HVDS_LANES];
  for (int64_t lane = 0; lane < HVDS_LANES; ++lane) {
    whose[lane] = keys[lane < count ? lane : 0];
    lanes[lane] = messages[lane < count ? lane : 0];
  }
  State<Lanes> state = begin(words_at(whose, 0), words_at(whose, 8));
  for (int64_t at = 0; at + 8 <= bytes; at += 8) take(state, words_at(lanes, at));
  Lanes words;
  for (int lane = 0; lane < HVDS_LANES; ++lane) words[lane] = last_word(lanes[lane] + bytes / 8 * 8, bytes);
  take(state, words);
  Lanes low, high;
  end(state, low, high);
  for (int64_t lane = 0; lane < count; ++lane) {
    const uint64_t tag[2] = {low[lane], high[lane]};
    std::memcpy(tags + HVDS_TAG_BYTES * lane, tag, sizeof tag);
  }
}
#endif

}  // namespace
}  // namespace hvds

void hvds_siphash(const uint8_t* key, const uint8_t* message, int64_t bytes, uint8_t* tag) {
  hvds::State<uint64_t> state = hvds::begin(hvds::word_at(key), hvds::word_at(key + 8));
  for (int64_t at = 0; at + 8 <= bytes; at += 8) hvds::take(state, hvds::word_at(message + at));
  hvds::take(state, hvds::last_word(message + bytes / 8 * 8, bytes));
  uint64_t both[2];
  hvds::end(state, both[0], both[1]);
  std::memcpy(tag, both, sizeof both);
}

void hvds_siphash_many(const uint8_t* const* keys, const uint8_t* const* messages, int64_t count, int64_t bytes,
                       uint8_t* tags) {
#ifdef HVDS_SIDE_BY_SIDE
  if (count >= hvds::kWorthLanes && hvds_isa() == HVDS_AVX512) {
    hvds::side_by_side(keys, messages, count, bytes, tags);
    return;
  }
#endif
  for (int64_t i = 0; i < count; ++i) hvds_siphash(keys[i], messages[i], bytes, tags + HVDS_TAG_BYTES * i);
}
