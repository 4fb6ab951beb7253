// Tracks the counters seen from a sender: each is accepted once, in any order within the window (RFC 6479).
#ifndef HVD_SPARSE_OPS_DATAGRAMS_WINDOW_H_
#define HVD_SPARSE_OPS_DATAGRAMS_WINDOW_H_

#include <stdint.h>

#include <algorithm>

namespace hvds {

class Window {
 public:
  static constexpr uint64_t kSize = 8192;  // counters below the highest that are still accepted, at least

  // Whether a counter, starting at 1, is new; it is then marked as seen. A counter below the window may have been seen,
  // and is refused.
  bool accept(uint64_t counter) {
    if (counter == 0 || counter + kSize <= highest_) return false;
    if (counter > highest_) advance(counter);
    uint64_t& word = words_[counter / 64 % kWords];
    const uint64_t bit = uint64_t{1} << counter % 64;
    if ((word & bit) != 0) return false;
    word |= bit;
    return true;
  }

  uint64_t highest() const { return highest_; }

 private:
  static constexpr uint64_t kWords = kSize / 64 + 1;

  void advance(uint64_t counter) {
    const uint64_t fresh = std::min(counter / 64 - highest_ / 64, kWords);
    for (uint64_t i = 0; i < fresh; ++i) words_[(counter / 64 - i) % kWords] = 0;
    highest_ = counter;
  }

  uint64_t words_[kWords] = {};
  uint64_t highest_ = 0;
};

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_DATAGRAMS_WINDOW_H_
