// What a rank knows of another one.
#ifndef HVD_SPARSE_OPS_DATAGRAMS_PEER_H_
#define HVD_SPARSE_OPS_DATAGRAMS_PEER_H_

#include <stdint.h>

#include <algorithm>
#include <atomic>

#include "format.h"
#include "pacer.h"
#include "socket.h"
#include "window.h"

namespace hvds {

struct Peer {
  // Guarded by the endpoint's mutex.
  Key in{};
  Window window;
  uint64_t accepted = 0;
  int64_t round = 0;                // the latest in which it was seen
  uint8_t flags = 0;                // what it said in that round
  Nanoseconds sent_all[2] = {0, 0};  // when it was first heard that all of a phase is on the way
  bool left = false;                 // it said good-bye
  bool silent = false;              // nobody waits for it until it takes part in a round again
  double rate = 0;
  uint64_t told_highest = 0, told_accepted = 0;  // by it, of what it had from here

  // Of the way to it: read by who sends, under the endpoint's mutex for the ways.
  Address address{};
  Key out{};
  uint32_t start = 0;
  std::atomic<uint64_t> counter{0};     // of what was sent
  std::atomic<bool> served{false};      // whether segments of this round are sent to it

  bool in_round(int64_t wanted) const { return round == wanted && (flags & kInRound) != 0; }

  // It was seen in a round, and said this.
  void hear(int64_t said, uint8_t flags_said, Nanoseconds time) {
    if (said < round) return;
    if (said > round) {
      flags = 0;
      sent_all[0] = sent_all[1] = 0;
    }
    round = said;
    flags |= flags_said;
    if ((flags & kScatterSent) != 0 && sent_all[0] == 0) sent_all[0] = time;
    if ((flags & kGatherSent) != 0 && sent_all[1] == 0) sent_all[1] = time;
  }

  // It has been started anew.
  void begin_anew(uint32_t new_start) {
    start = new_start;
    window = Window();
    accepted = told_highest = told_accepted = 0;
    round = 0;
    flags = 0;
    sent_all[0] = sent_all[1] = 0;
  }
};

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_DATAGRAMS_PEER_H_
