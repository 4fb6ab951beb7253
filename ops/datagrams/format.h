// The format of datagrams and the layout of vectors.
//
// A datagram is a header, a payload and a tag over both (siphash.h). Its key is derived from the meeting's secret and
// from the processes at its two ends: a restarted process has new keys in both directions, so that recorded datagrams
// cannot be replayed. Numbers are little-endian.
#ifndef HVD_SPARSE_OPS_DATAGRAMS_FORMAT_H_
#define HVD_SPARSE_OPS_DATAGRAMS_FORMAT_H_

#include <stdint.h>

#include <algorithm>
#include <cstring>

#include "datagrams.h"
#include "siphash.h"

namespace hvds {

constexpr uint16_t kMagic = 0xd5a1;  // includes version 1 of the format

enum Kind : uint8_t {
  kState = 1,         // the sender's state, and what it has received
  kContribution = 2,  // a segment of a block, sent to the owner, which averages it
  kMean = 3,          // a segment of a mean, from its owner
};

enum Flag : uint8_t {
  kInRound = 1,       // the sender takes part in the header's round; without it, it has finished all earlier ones
  kScatterSent = 2,   // all that the sender has for the receiver in the reduce-scatter has been sent
  kGatherSent = 4,    // the same for the all-gather
  kLeaving = 8,       // the sender leaves for good
  kEmpty = 16,        // the sender has no model yet: it receives, but contributes nothing
};

struct Header {
  uint16_t magic;
  uint8_t kind;
  uint8_t flags;
  uint32_t job;  // the meeting, as a number derived from the secret
  uint16_t sender;
  uint16_t receiver;
  uint16_t block;
  uint16_t elements;        // in the segment
  uint32_t sender_start;    // start time of the sender's process, in seconds; later processes have larger ones
  uint32_t receiver_start;  // the receiver's, as the sender knows it
  uint64_t counter;         // of all that the sender has sent to the receiver, starting at 1
  uint32_t round;
  uint32_t offset;  // of the segment in its block, in elements
};
static_assert(sizeof(Header) == 40);

// The payload of kState.
struct State {
  uint64_t highest;   // highest counter received from the receiver
  uint64_t accepted;  // number of datagrams with a valid tag received from it
  double rate;        // the sender's sending rate, in bits per second
};
static_assert(sizeof(State) == 24);

constexpr int64_t kFrame = sizeof(Header) + HVDS_TAG_BYTES;
constexpr int64_t kStateBytes = kFrame + sizeof(State);

struct Key {
  uint8_t bytes[HVDS_KEY_BYTES];
};

// The key of one direction.
inline Key derive(const Key& master, uint32_t sender, uint32_t receiver, uint32_t sender_start,
                  uint32_t receiver_start) {
  const uint32_t subject[4] = {sender, receiver, sender_start, receiver_start};
  uint8_t message[sizeof subject];
  std::memcpy(message, subject, sizeof subject);
  Key key;
  hvds_siphash(master.bytes, message, sizeof message, key.bytes);
  return key;
}

// The seed of a round's signs (spread.h); unpredictable without the secret.
inline uint64_t seed_of(const Key& master, int64_t round) {
  constexpr uint32_t kNoRank = UINT32_MAX;
  const Key drawn = derive(master, kNoRank, kNoRank, static_cast<uint32_t>(round), 0);
  uint64_t seed;
  std::memcpy(&seed, drawn.bytes, sizeof seed);
  return seed;
}

// Compares two tags in constant time, so that timing does not reveal where they differ.
inline bool same_tag(const uint8_t* a, const uint8_t* b) {
  unsigned different = 0;
  for (int i = 0; i < HVDS_TAG_BYTES; ++i) different |= a[i] ^ b[i];
  return different == 0;
}

// How a vector is cut: into one block per rank, all but the last ones of equal length, and each block into segments,
// all but its last one of equal length.
struct Layout {
  int64_t size;     // of the vector
  int64_t ranks;
  int64_t segment;  // elements per segment
  bool rotate;      // the owner of block b is rank (b + round) % ranks; else rank b

  int64_t length() const { return (size + ranks - 1) / ranks; }
  int64_t start_of(int64_t block) const { return std::min(block * length(), size); }
  int64_t length_of(int64_t block) const { return start_of(block + 1) - start_of(block); }
  int64_t segments_of(int64_t block) const { return (length_of(block) + segment - 1) / segment; }
  int64_t most_segments() const { return segments_of(0); }
  int64_t elements_of(int64_t block, int64_t number) const {
    return std::min(segment, length_of(block) - number * segment);
  }
  int64_t block_of(int64_t rank, int64_t round) const {
    return rotate ? ((rank - round) % ranks + ranks) % ranks : rank;
  }
};

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_DATAGRAMS_FORMAT_H_
