// Time limits of the phases of a round.
#ifndef HVD_SPARSE_OPS_DATAGRAMS_LIMITS_H_
#define HVD_SPARSE_OPS_DATAGRAMS_LIMITS_H_

#include <stdint.h>

#include <algorithm>

#include "datagrams.h"
#include "pacer.h"

namespace hvds {

class Limits {
 public:
  explicit Limits(const hvds_datagrams_settings& settings) : settings_(settings) {}

  // The limit of phase 0 (reduce-scatter) or 1 (all-gather), in which each rank sends `bytes` bytes. If the rate has
  // fallen, recent phases are too short a guide: the time that the bytes need now counts as one of them, if it is
  // longer.
  Nanoseconds of(int phase, int64_t bytes, double rate) const {
    const double needed = static_cast<double>(bytes) * 8 / rate;
    double limit = settings_.multiple * needed;
    if (count_[phase] > 0) limit = std::min(limit, settings_.slack * std::max(median(phase), needed));
    return static_cast<Nanoseconds>(std::max(limit, settings_.least) * kSecond);
  }

  // Records the duration of a phase.
  void remember(int phase, double seconds) { recent_[phase][count_[phase]++ % kRecent] = seconds; }

 private:
  static constexpr int64_t kRecent = 9;

  double median(int phase) const {
    const int64_t known = std::min(count_[phase], kRecent);
    double sorted[kRecent];
    std::copy(recent_[phase], recent_[phase] + known, sorted);
    std::nth_element(sorted, sorted + known / 2, sorted + known);
    return sorted[known / 2];
  }

  const hvds_datagrams_settings settings_;
  double recent_[2][kRecent] = {};
  int64_t count_[2] = {0, 0};
};

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_DATAGRAMS_LIMITS_H_
