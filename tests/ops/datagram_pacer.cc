// The pacer (ops/datagrams/pacer.h) on a link with bursts of other traffic, in simulated time:
// datagram_pacer CEILING CAPACITY PERIOD BURST ACTIVE PAUSE
//
// A rank sends for ACTIVE ms and pauses for PAUSE ms, over a link of CAPACITY bits per second with a queue of 5 ms, to
// which another sender sends at twice the capacity for BURST ms of each PERIOD. Prints the mean rate while the rank
// sends, divided by CAPACITY, and the share of loss, both for the second half of a minute.
#include <cstdio>
#include <cstdlib>

#include "datagrams/pacer.h"

namespace {

using hvds::kMillisecond;
using hvds::Nanoseconds;

constexpr Nanoseconds kEnd = 60'000 * kMillisecond, kStep = 250'000, kReported = 5 * kMillisecond;
constexpr double kDatagram = 1514;  // bytes

Nanoseconds milliseconds(const char* word) { return static_cast<Nanoseconds>(std::atof(word) * kMillisecond); }

// A link; each call of `take` is one step.
class Link {
 public:
  explicit Link(double capacity) : drained_(capacity / 8 * kStep / hvds::kSecond) {}

  double drained() const { return drained_; }

  // Takes a step; returns how many of these bytes are lost.
  double take(double bytes, double others) {
    const double coming = queue_ + bytes + others - drained_, gone = std::max(0.0, coming - 20 * drained_);
    queue_ = std::clamp(coming, 0.0, 20 * drained_);
    return bytes > 0 ? gone * bytes / (bytes + others) : 0;
  }

 private:
  const double drained_;  // bytes
  double queue_ = 0;
};

// The receivers' reports, one every five milliseconds.
class Receivers {
 public:
  void tell(hvds::Pacer& pacer, double sent, double lost, Nanoseconds time) {
    sent_ += sent / kDatagram;
    lost_ += lost / kDatagram;
    if (time < told_at_ + kReported) return;
    const auto whole_sent = static_cast<int64_t>(sent_), whole_lost = static_cast<int64_t>(lost_);
    pacer.report(whole_sent - told_sent_, whole_lost - told_lost_, time);
    told_sent_ = whole_sent;
    told_lost_ = whole_lost;
    told_at_ = time;
  }

 private:
  double sent_ = 0, lost_ = 0;
  int64_t told_sent_ = 0, told_lost_ = 0;
  Nanoseconds told_at_ = 0;
};

}  // namespace

int main(int, char** arguments) {
  const double capacity = std::atof(arguments[2]);
  const Nanoseconds period = milliseconds(arguments[3]), burst = milliseconds(arguments[4]);
  const Nanoseconds active = milliseconds(arguments[5]), pause = milliseconds(arguments[6]);
  hvds::Pacer pacer(std::atof(arguments[1]));
  Link link(capacity);
  Receivers receivers;
  double rates = 0, sending = 0, sent = 0, lost = 0;
  Nanoseconds next = 0;  // when the next datagram may go
  for (Nanoseconds time = 0; time < kEnd; time += kStep) {
    const bool sends = time % (active + pause) < active;
    double bytes = 0;
    for (; sends && next < time + kStep; next = pacer.take(kDatagram, time)) bytes += kDatagram;
    const double gone = link.take(bytes, time % period < burst ? 2 * link.drained() : 0);
    if (time >= kEnd / 2 && sends) {
      rates += pacer.rate();
      sending += 1;
      sent += bytes;
      lost += gone;
    }
    receivers.tell(pacer, bytes, gone, time);
  }
  std::printf("%.4f %.4f\n", rates / sending / capacity, lost / sent);
  return 0;
}
