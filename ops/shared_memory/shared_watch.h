// How a rank that waits for others tells which of them stand still.
#ifndef HVD_SPARSE_OPS_SHARED_WATCH_H_
#define HVD_SPARSE_OPS_SHARED_WATCH_H_

#include <stdint.h>

#include <algorithm>
#include <chrono>
#include <vector>

namespace hvds {

constexpr double kLongestLook = 0.5;  // seconds between two looks; a process that was stopped itself has not looked

// Tells which members stand still: those whose beats do not change, by the time for which this process has looked.
class Watch {
 public:
  Watch(int members, double patience) : patience_(patience), seen_(members), still_(members) {}

  // Notes a member's beats.
  void look(int member, uint64_t beats, double elapsed) {
    still_[member] = beats == seen_[member] ? still_[member] + elapsed : 0;
    seen_[member] = beats;
  }

  bool stands_still(int member) const { return patience_ > 0 && still_[member] > patience_; }

 private:
  const double patience_;
  std::vector<uint64_t> seen_;
  std::vector<double> still_;
};

// Seconds since the last call, at most `kLongestLook`.
class Elapsed {
 public:
  double operator()() {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return std::min(seconds, kLongestLook);
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_SHARED_WATCH_H_
