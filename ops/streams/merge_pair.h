// The merge of two streams of single numbers, without data-dependent branches.
//
// Each step takes the lower of the two next rows, or both if they are equal; the choice only determines what is added
// to the positions. As each step depends on the one before, several merges of different rows are interleaved.
#ifndef HVD_SPARSE_OPS_MERGE_PAIR_H_
#define HVD_SPARSE_OPS_MERGE_PAIR_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "merge_elements.h"
#include "merge_walk.h"

namespace hvds {

template <typename Element, typename Operation>
class PairMerge {
 public:
  // Writes to `indices` and `values`, which have room for the entries of both streams.
  PairMerge(const hvds_stream& a, const hvds_stream& b, int32_t* indices, Element* values)
      : a_(a), b_(b), a_rows_(a.indices), b_rows_(b.indices), a_values_(static_cast<const Element*>(a.values)),
        b_values_(static_cast<const Element*>(b.values)), indices_(indices), values_(values) {}

  // Merges rows [begin, end), and returns their number.
  int64_t run(int64_t begin, int64_t end) {
    Lane lanes[kLanes];
    int64_t starts[kLanes];
    cut(begin, end, lanes);
    for (int lane = 0; lane < kLanes; ++lane) starts[lane] = lanes[lane].out;
    while (run_together(lanes)) {
    }
    int64_t written = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
      finish(lanes[lane]);
      const int64_t count = lanes[lane].out - starts[lane];
      std::memmove(indices_ + written, indices_ + starts[lane], static_cast<size_t>(count) * sizeof *indices_);
      std::memmove(values_ + written, values_ + starts[lane], static_cast<size_t>(count) * sizeof *values_);
      written += count;
    }
    return written;
  }

 private:
  static constexpr int kLanes = 4;
  static constexpr int64_t kWorthwhile = 8;  // steps that all lanes can make

  struct Lane {
    int64_t a, a_end, b, b_end, out;
  };

  using Bits = std::conditional_t<sizeof(Element) == 8, uint64_t,
                                  std::conditional_t<sizeof(Element) == 4, uint32_t, uint16_t>>;

  // Cuts the rows into lanes of about the same length. No row is in two lanes.
  void cut(int64_t begin, int64_t end, Lane* lanes) const {
    const int64_t a_begin = position_of(a_, begin), b_begin = position_of(b_, begin);
    const int64_t a_end = position_of(a_, end), b_end = position_of(b_, end);
    const int64_t entries = a_end - a_begin + b_end - b_begin;
    Lane next{a_begin, a_end, b_begin, b_end, 0};
    for (int lane = 0; lane < kLanes; ++lane) {
      const int64_t row = lane + 1 < kLanes ? row_before(a_begin + b_begin + entries * (lane + 1) / kLanes, end) : end;
      next.a_end = std::max(next.a, std::min(position_of(a_, row), a_end));
      next.b_end = std::max(next.b, std::min(position_of(b_, row), b_end));
      lanes[lane] = next;
      next.out += next.a_end - next.a + next.b_end - next.b;
      next.a = next.a_end;
      next.b = next.b_end;
    }
  }

  // A row of the longer stream before which there are about `entries` entries of both streams.
  int64_t row_before(int64_t entries, int64_t end) const {
    const hvds_stream& longer = a_.count >= b_.count ? a_ : b_;
    const hvds_stream& other = a_.count >= b_.count ? b_ : a_;
    int64_t low = 0, high = longer.count;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      const bool before = middle + position_of(other, longer.indices[middle]) < entries;
      (before ? low : high) = before ? middle + 1 : middle;
    }
    return low < longer.count ? std::min<int64_t>(longer.indices[low], end) : end;
  }

  // Makes the steps for which no lane is too short; returns false if that is not worthwhile.
  bool run_together(Lane* lanes) {
    int64_t sure = lanes[0].a_end - lanes[0].a;
    for (int lane = 0; lane < kLanes; ++lane) {
      sure = std::min({sure, lanes[lane].a_end - lanes[lane].a, lanes[lane].b_end - lanes[lane].b});
    }
    if (sure < kWorthwhile) return false;
    Lane first = lanes[0], second = lanes[1], third = lanes[2], fourth = lanes[3];
    for (int64_t i = 0; i < sure; ++i) {
      step(first);
      step(second);
      step(third);
      step(fourth);
    }
    lanes[0] = first;
    lanes[1] = second;
    lanes[2] = third;
    lanes[3] = fourth;
    return true;
  }

  void finish(Lane& lane) {
    while (lane.a < lane.a_end && lane.b < lane.b_end) step(lane);
    copy(a_rows_ + lane.a, a_values_ + lane.a, lane.a_end - lane.a, lane);
    copy(b_rows_ + lane.b, b_values_ + lane.b, lane.b_end - lane.b, lane);
  }

  void copy(const int32_t* rows, const Element* values, int64_t count, Lane& lane) {
    std::copy_n(rows, count, indices_ + lane.out);
    begin_run<Element, Operation>(values_ + lane.out, values, count);
    lane.out += count;
  }

  void step(Lane& lane) {
    const int32_t a = a_rows_[lane.a], b = b_rows_[lane.b];
    const int64_t has_a = a <= b, has_b = b <= a;
    indices_[lane.out] = std::min(a, b);
    const Element from_a = or_neutral(has_a, a_values_[lane.a]);
    const Element from_b = or_neutral(has_b, b_values_[lane.b]);
    values_[lane.out] = combined<Element, Operation>(
        combined<Element, Operation>(neutral<Element, Operation>(), from_a), from_b);
    lane.a += has_a;
    lane.b += has_b;
    ++lane.out;
  }

  static Element or_neutral(int64_t has, Element value) {
    const Element absent = neutral<Element, Operation>();
    Bits bits, other;
    std::memcpy(&bits, &value, sizeof bits);
    std::memcpy(&other, &absent, sizeof other);
    const auto mask = static_cast<Bits>(-has);
    bits = static_cast<Bits>((bits & mask) | (other & ~mask));
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }

  const hvds_stream& a_;
  const hvds_stream& b_;
  const int32_t* const a_rows_;
  const int32_t* const b_rows_;
  const Element* const a_values_;
  const Element* const b_values_;
  int32_t* const indices_;
  Element* const values_;
};

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_MERGE_PAIR_H_
