// What has arrived in one round: contributions to the block that this rank owns, and means of the others' blocks.
#ifndef HVD_SPARSE_OPS_DATAGRAMS_INBOX_H_
#define HVD_SPARSE_OPS_DATAGRAMS_INBOX_H_

#include <stdint.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "format.h"

namespace hvds {

// Memory whose pages are not touched before they are used.
struct Free {
  void operator()(float* memory) const { free(memory); }
};
using Floats = std::unique_ptr<float, Free>;

inline Floats allocate(int64_t count) { return Floats(static_cast<float*>(malloc(count * sizeof(float)))); }

class Inbox {
 public:
  Inbox(const Layout& layout, int64_t me)
      : layout_(layout),
        me_(me),
        most_(layout.most_segments()),
        contributions_(allocate(layout.ranks * layout.length())),
        contributors_(most_),
        finished_(most_),
        order_(most_),
        came_(layout.ranks * most_),
        scattered_(layout.ranks),
        gathered_(layout.ranks) {}

  bool has_memory() const { return contributions_ != nullptr; }

  void reset(int64_t round) {
    round_ = round;
    block_ = layout_.block_of(me_, round);
    std::fill(contributors_.begin(), contributors_.end(), 0);
    std::fill(finished_.begin(), finished_.end(), 0);
    std::fill(came_.begin(), came_.end(), 0);
    std::fill(scattered_.begin(), scattered_.end(), 0);
    std::fill(gathered_.begin(), gathered_.end(), 0);
    count_.store(0, std::memory_order_relaxed);
  }

  int64_t round() const { return round_; }
  int64_t block() const { return block_; }  // the block that this rank owns
  int64_t segments() const { return layout_.segments_of(block_); }
  int64_t most_segments() const { return most_; }
  int64_t scattered(int64_t sender) const { return scattered_[sender]; }
  int64_t gathered(int64_t owner) const { return gathered_[owner]; }
  const std::vector<uint64_t>& contributors() const { return contributors_; }
  const std::vector<uint8_t>& came() const { return came_; }

  // Stores a contribution to a segment of the own block. Returns HVDS_ACCEPTED, HVDS_REPEATED or HVDS_LATE.
  hvds_datagrams_fate put(int64_t sender, int64_t number, const uint8_t* payload) {
    const uint64_t bit = uint64_t{1} << sender;
    if ((contributors_[number] & bit) != 0) return HVDS_REPEATED;
    if (finished_[number]) return HVDS_LATE;
    std::memcpy(contribution(sender, number), payload, layout_.elements_of(block_, number) * sizeof(float));
    contributors_[number] |= bit;
    ++scattered_[sender];
    return HVDS_ACCEPTED;
  }

  // Writes a mean of another block to the result. Returns HVDS_ACCEPTED or HVDS_REPEATED.
  hvds_datagrams_fate put_mean(int64_t owner, int64_t number, const uint8_t* payload, float* result) {
    const int64_t block = layout_.block_of(owner, round_);
    uint8_t& there = came_[block * most_ + number];
    if (there) return HVDS_REPEATED;
    std::memcpy(result + layout_.start_of(block) + number * layout_.segment, payload,
                layout_.elements_of(block, number) * sizeof(float));
    there = 1;
    ++gathered_[owner];
    return HVDS_ACCEPTED;
  }

  bool has_all(int64_t number) const {
    const uint64_t others = (~uint64_t{0} >> (64 - layout_.ranks)) & ~(uint64_t{1} << me_);
    return (contributors_[number] & others) == others;
  }

  // Averages the contributions to a segment, including this rank's own unless `vector` is null, if that has not been
  // done. Without contributions there is no mean.
  void finish(int64_t number, const float* vector, float* result) {
    if (finished_[number]) return;
    finished_[number] = 1;
    if (vector != nullptr) contributors_[number] |= uint64_t{1} << me_;
    if (contributors_[number] == 0) return;
    const int64_t start = layout_.start_of(block_) + number * layout_.segment;
    const int64_t elements = layout_.elements_of(block_, number);
    float* mean = result + start;
    bool first = true;
    for (int64_t rank = 0; rank < layout_.ranks; ++rank) {
      if ((contributors_[number] >> rank & 1) == 0) continue;
      const float* part = rank == me_ ? vector + start : contribution(rank, number);
      if (first) {
        std::memcpy(mean, part, elements * sizeof(float));
      } else {
        for (int64_t i = 0; i < elements; ++i) mean[i] += part[i];
      }
      first = false;
    }
    const auto divisor = static_cast<float>(__builtin_popcountll(contributors_[number]));
    for (int64_t i = 0; i < elements; ++i) mean[i] /= divisor;
    came_[block_ * most_ + number] = 1;
    const int64_t place = count_.load(std::memory_order_relaxed);
    order_[place] = number;
    count_.store(place + 1, std::memory_order_release);
  }

  // Segments in the order in which they were finished; may be read while others are being finished.
  int64_t finished_count() const { return count_.load(std::memory_order_acquire); }
  int64_t finished_at(int64_t place) const { return order_[place]; }

  // Fills in the rank's own elements where no mean arrived.
  void keep_own(const float* vector, float* result) const {
    for (int64_t block = 0; block < layout_.ranks; ++block) {
      for (int64_t number = 0; number < layout_.segments_of(block); ++number) {
        if (came_[block * most_ + number]) continue;
        const int64_t start = layout_.start_of(block) + number * layout_.segment;
        std::memcpy(result + start, vector + start, layout_.elements_of(block, number) * sizeof(float));
      }
    }
  }

 private:
  float* contribution(int64_t sender, int64_t number) const {
    return contributions_.get() + sender * layout_.length() + number * layout_.segment;
  }

  const Layout layout_;
  const int64_t me_, most_;
  int64_t round_ = 0, block_ = 0;
  Floats contributions_;                        // [ranks][length]; this rank's own is never touched
  std::vector<uint64_t> contributors_;          // per segment of the own block
  std::vector<uint8_t> finished_;
  std::vector<int64_t> order_;
  std::atomic<int64_t> count_{0};
  std::vector<uint8_t> came_;                   // [blocks][segments]
  std::vector<int64_t> scattered_, gathered_;   // per rank
};

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_DATAGRAMS_INBOX_H_
