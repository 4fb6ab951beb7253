// Sending rate of a rank: a token bucket whose rate adapts to the losses that receivers report.
#ifndef HVD_SPARSE_OPS_DATAGRAMS_PACER_H_
#define HVD_SPARSE_OPS_DATAGRAMS_PACER_H_

#include <stdint.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cmath>

namespace hvds {

using Nanoseconds = int64_t;
constexpr Nanoseconds kMillisecond = 1'000'000;
constexpr Nanoseconds kSecond = 1'000'000'000;

inline Nanoseconds now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * kSecond + time.tv_nsec;
}

inline void sleep_until(Nanoseconds when) {
  const timespec time{when / kSecond, when % kSecond};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr) != 0) {
  }
}

// One thread sends; another one reports.
class Pacer {
 public:
  // ceiling: bits per second; infinity if there is none. A known ceiling is the initial rate; otherwise the rate is
  // probed.
  explicit Pacer(double ceiling)
      : ceiling_(ceiling),
        finding_out_(!std::isfinite(ceiling)),
        rate_(finding_out_ ? kFirstRate : ceiling),
        peak_(rate()) {}

  double rate() const { return rate_.load(std::memory_order_relaxed); }

  // The most bytes to send at once: a quarter of a millisecond's worth.
  int64_t burst() const { return static_cast<int64_t>(rate() / 8 * kQuantumSeconds); }

  // The time at which this many bytes may be sent; they count as sent from now on.
  Nanoseconds take(int64_t bytes, Nanoseconds time) {
    const double per_nanosecond = rate() / 8 / kSecond;
    // A pause, such as a computation, does not count as time in which it could have sent more.
    active_.fetch_add(std::clamp<Nanoseconds>(time - took_, 0, kPause), std::memory_order_relaxed);
    took_ = time;
    // Unused time after a late wake-up is made up for, but only as far as a queue can absorb it.
    free_at_ = std::max(free_at_, static_cast<double>(time - kMakeUp));
    const auto when = static_cast<Nanoseconds>(free_at_);
    free_at_ += static_cast<double>(bytes) / per_nanosecond;
    taken_.fetch_add(bytes, std::memory_order_relaxed);
    return when;
  }

  // `lost` of `sent` datagrams did not reach their receiver; a negative number corrects earlier reports of datagrams
  // that were only late.
  void report(int64_t sent, int64_t lost, Nanoseconds time) {
    if (time < deaf_until_) return;
    sent_ += sent;
    lost_ += lost;
    if (sent_ < kWorthALook || time < looked_ + kInterval) return;
    const double share = static_cast<double>(lost_) / static_cast<double>(sent_);
    const auto bytes = static_cast<double>(taken_.exchange(0, std::memory_order_relaxed));
    const auto active = static_cast<double>(active_.exchange(0, std::memory_order_relaxed));
    const double used = 8e9 * bytes / std::max(active, 1.0);
    sent_ = lost_ = 0;
    looked_ = time;
    if (share > tolerated_) {
      decrease(share, used, time);
    } else {
      tolerated_ = std::max(kTolerated, std::min(tolerated_, kMargin * share));
      before_ = 0;
      if (used > kUsed * rate()) increase();  // else the sender is limited by something else
    }
  }

 private:
  static constexpr double kFirstRate = 100e6;
  static constexpr double kLeastRate = 1e6;
  static constexpr double kTolerated = 0.02;  // a loss rate that changes nothing
  static constexpr double kBearable = 0.25;   // the most loss to tolerate if a lower rate does not help
  static constexpr double kMargin = 1.25;
  static constexpr double kUsed = 0.7;
  static constexpr double kFirstStep = 1.0 / 150;  // relative to the rate, beyond the point where too much was lost
  static constexpr double kGrows = 1.3, kLargestStep = 0.1;
  static constexpr double kFades = 0.95;  // the fraction of peak_ that is kept at another loss below it
  static constexpr double kQuantumSeconds = 250e-6;
  static constexpr Nanoseconds kMakeUp = 2 * kMillisecond;
  static constexpr Nanoseconds kPause = 2 * kMillisecond;  // between two runs; longer ones count as this long
  static constexpr Nanoseconds kInterval = 10 * kMillisecond;
  static constexpr Nanoseconds kEcho = 50 * kMillisecond;  // for this long, reports still concern earlier datagrams
  static constexpr int64_t kWorthALook = 50;               // datagrams

  // Lowers the rate to what has arrived. If the loss came from an overflowing queue, it then nearly vanishes. Loss that
  // persists has another cause, which no rate cures, and is tolerated as long as it lasts.
  void decrease(double share, double used, Nanoseconds time) {
    const bool helped = before_ == 0 || share < 0.7 * before_;
    unhelped_ = helped ? 0 : unhelped_ + 1;
    before_ = share;
    if (unhelped_ >= 2 && share < kBearable) {
      tolerated_ = kMargin * share;
      unhelped_ = 0;
      return;
    }
    // Based on what was sent, which may be less than was allowed; but at least half of that, as the sender may have
    // been held up by others.
    const double rate = std::clamp(used, this->rate() / 2, this->rate());
    peak_ = std::max(rate, kFades * peak_);
    step_ = kFirstStep;
    rate_.store(std::max(rate * std::max(0.5, 1.0 - share), std::min(kLeastRate, ceiling_)), std::memory_order_relaxed);
    finding_out_ = false;
    deaf_until_ = time + kEcho;
  }

  // Raises the rate by a tenth until something is lost: reports arrive only after more has been sent. Then halves the
  // distance to the rate at which too much was lost, as a neighbour's burst is soon over (as BIC: Xu, Harfoush and Rhee
  // 2004), and beyond that, grows in steps that start small and increase.
  void increase() {
    const double rate = this->rate();
    double more = 1.1 * rate;
    if (!finding_out_ && rate < peak_) {
      more = std::min(peak_, rate + std::max((peak_ - rate) / 2, kFirstStep * peak_));
    } else if (!finding_out_) {
      more = (1 + step_) * rate;
      step_ = std::min(kGrows * step_, kLargestStep);
    }
    rate_.store(std::min(more, ceiling_), std::memory_order_relaxed);
  }

  const double ceiling_;
  bool finding_out_;
  std::atomic<double> rate_;
  double peak_;            // the rate at which too much was lost; decays
  double step_ = kFirstStep;  // relative growth beyond peak_
  std::atomic<int64_t> taken_{0};          // bytes since the last look
  std::atomic<Nanoseconds> active_{0};     // time in which they were sent
  Nanoseconds took_ = 0;                   // the last time that bytes were taken
  double free_at_ = 0;     // when everything sent so far will have left, in nanoseconds
  double before_ = 0;      // the loss rate at the last look, if it was too high
  double tolerated_ = kTolerated;
  int unhelped_ = 0;       // consecutive looks at which a lower rate had not helped
  int64_t sent_ = 0, lost_ = 0;
  Nanoseconds looked_ = 0, deaf_until_ = 0;
};

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_DATAGRAMS_PACER_H_
