// The pacer (ops/datagrams/pacer.h) against a link whose bursts of other traffic it did not cause, in simulated time:
// datagram_pacer CEILING CAPACITY PERIOD BURST ACTIVE PAUSE
//
// A rank sends for ACTIVE ms and pauses for PAUSE ms, over a link of CAPACITY bits per second with a queue of 5 ms, to
// which a neighbour sends twice as much for BURST ms of each PERIOD. Prints the mean rate while it sends, over CAPACITY,
// and the share of loss, both of the second half of a minute.
#include <cstdio>
#include <cstdlib>

#include "datagrams/pacer.h"

int main(int, char** arguments) {
  using hvds::kMillisecond;
  const double ceiling = std::atof(arguments[1]), capacity = std::atof(arguments[2]);
  hvds::Nanoseconds spans[4];
  for (int i = 0; i < 4; ++i) spans[i] = static_cast<hvds::Nanoseconds>(std::atof(arguments[3 + i]) * kMillisecond);
  const auto [period, burst, active, pause] = spans;
  const hvds::Nanoseconds end = 60'000 * kMillisecond, step = 250'000;
  constexpr int64_t kBytes = 1514;
  hvds::Pacer pacer(ceiling);
  hvds::Nanoseconds reported = 0;
  double rates = 0, lost_all = 0, sent_all = 0, sent = 0, lost = 0;
  int64_t told_sent = 0, told_lost = 0, counted = 0;
  hvds::Nanoseconds next = 0;  // when the next datagram may go
  const double drained = capacity / 8 * static_cast<double>(step) / hvds::kSecond, most = drained * 20;
  double queue = 0;
  for (hvds::Nanoseconds time = 0; time < end; time += step) {
    const bool sends = time % (active + pause) < active;
    double bytes = 0;
    for (; sends && next < time + step; next = pacer.take(kBytes, time)) bytes += kBytes;
    const double others = time % period < burst ? 2 * drained : 0;
    const double gone = std::max(0.0, queue + bytes + others - drained - most);
    const double lost_now = bytes > 0 ? gone * bytes / (bytes + others) : 0;
    queue = std::clamp(queue + bytes + others - drained, 0.0, most);
    sent += bytes / kBytes;
    lost += lost_now / kBytes;
    if (time >= end / 2) {
      sent_all += bytes;
      lost_all += lost_now;
      rates += sends ? pacer.rate() : 0;
      counted += sends ? 1 : 0;
    }
    if (time >= reported + 5 * kMillisecond) {  // what the receivers say
      const auto now_sent = static_cast<int64_t>(sent), now_lost = static_cast<int64_t>(lost);
      pacer.report(now_sent - told_sent, now_lost - told_lost, time);
      told_sent = now_sent;
      told_lost = now_lost;
      reported = time;
    }
  }
  std::printf("%.4f %.4f\n", rates / static_cast<double>(counted) / capacity, lost_all / sent_all);
  return 0;
}
