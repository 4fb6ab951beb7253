// How datagrams look, and what they are about.
//
// A datagram is a header, a payload and a tag over both (siphash.h). Its key follows from the secret of the meeting and
// from the processes at its two ends: who is started anew has other keys in both directions, so that what was recorded
// before is of no use afterwards. Numbers are little-endian.
#ifndef HVD_SPARSE_OPS_DATAGRAMS_FORMAT_H_
#define HVD_SPARSE_OPS_DATAGRAMS_FORMAT_H_

#include <stdint.h>

#include <algorithm>
#include <cstring>

#include "datagrams.h"
#include "siphash.h"

namespace hvds {

constexpr uint16_t kMagic = 0xd5a1;  // and version 1 of the format

enum Kind : uint8_t {
  kState = 1,         // where the sender is, and what has reached it
  kContribution = 2,  // a segment of a block for its owner, who averages it
  kMean = 3,          // a segment of a mean, from its owner
};

enum Flag : uint8_t {
  kInRound = 1,       // the sender takes part in the round that the header names; without it, it has ended all before
  kScatterSent = 2,   // all that the sender has for the receiver in the reduce-scatter is on the way
  kGatherSent = 4,    // the same for the all-gather
  kLeaving = 8,       // the sender goes and will not be back
  kEmpty = 16,        // the sender has no model yet, and takes what comes: it contributes nothing
};

struct Header {
  uint16_t magic;
  uint8_t kind;
  uint8_t flags;
  uint32_t job;  // the meeting, as a number that follows from the secret
  uint16_t sender;
  uint16_t receiver;
  uint16_t block;
  uint16_t elements;        // of the segment
  uint32_t sender_start;    // when the sender's process was started, in seconds; later ones are larger
  uint32_t receiver_start;  // the receiver's, as the sender knows it
  uint64_t counter;         // of all that the sender has sent to the receiver, from 1 on
  uint32_t round;
  uint32_t offset;  // of the segment in its block, in elements
};
static_assert(sizeof(Header) == 40);

// The payload of kState.
struct State {
  uint64_t highest;   // counter of what has come from the receiver
  uint64_t accepted;  // how many with the right tag have
  double rate;        // bits per second at which the sender sends
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

// Of the signs of a round (spread.h); a number that nobody can tell who does not know the secret.
inline uint64_t seed_of(const Key& master, int64_t round) {
  constexpr uint32_t kNoRank = UINT32_MAX;
  const Key drawn = derive(master, kNoRank, kNoRank, static_cast<uint32_t>(round), 0);
  uint64_t seed;
  std::memcpy(&seed, drawn.bytes, sizeof seed);
  return seed;
}

// Whether two tags are the same, in a time that does not tell where they differ.
inline bool same_tag(const uint8_t* a, const uint8_t* b) {
  unsigned different = 0;
  for (int i = 0; i < HVDS_TAG_BYTES; ++i) different |= a[i] ^ b[i];
  return different == 0;
}

// How a vector is cut: into a block for each rank, all but the last ones of equal length, and each block into segments,
// all but its last one of equal length.
struct Layout {
  int64_t size;     // of the vector
  int64_t ranks;
  int64_t segment;  // elements of one
  bool rotate;      // the owner of block b is rank (b + round) % ranks; else b

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
