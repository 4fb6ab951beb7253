// What a rank knows about another one.
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
  int64_t round = 0;                // the latest round in which it was seen
  uint8_t flags = 0;                // its flags in that round
  Nanoseconds sent_all[2] = {0, 0};  // when it first reported that all of a phase had been sent
  bool left = false;                 // it has said that it leaves
  bool silent = false;              // not waited for until it takes part in a round again
  double rate = 0;
  uint64_t told_highest = 0, told_accepted = 0;  // its report of what it has received from here

  // The way to the peer: read by the sending thread, under the endpoint's mutex for the ways.
  Address address{};
  Key out{};
  uint32_t start = 0;
  std::atomic<uint64_t> counter{0};     // of what was sent
  std::atomic<bool> served{false};      // whether segments of this round are sent to it

  bool in_round(int64_t wanted) const { return round == wanted && (flags & kInRound) != 0; }

  // The peer was seen in round `said` with these flags.
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

  // The peer's process has been restarted.
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
