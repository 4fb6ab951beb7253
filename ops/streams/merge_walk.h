// Traverses streams block by block of rows, each stream up to the end of the block.
#ifndef HVD_SPARSE_OPS_MERGE_WALK_H_
#define HVD_SPARSE_OPS_MERGE_WALK_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "merge.h"

namespace hvds {

struct Streams {
  const hvds_stream* each;
  int64_t number;
  const hvds_stream* begin() const { return each; }
  const hvds_stream* end() const { return each + number; }
};

inline int64_t position_of(const hvds_stream& stream, int64_t row) {
  if (stream.indices == nullptr) return row;
  return std::lower_bound(stream.indices, stream.indices + stream.count, row) - stream.indices;
}

// A range of rows, and how many of them are processed at a time.
struct Range {
  int64_t begin;
  int64_t end;
  int64_t block;
};

class Walk {
 public:
  // `positions` [number of streams] is borrowed.
  Walk(const Streams& streams, const Range& range, int64_t* positions)
      : streams_(streams), positions_(positions), range_(range), block_(range.begin), block_end_(range.begin) {
    for (int64_t i = 0; i < streams.number; ++i) positions_[i] = position_of(streams.each[i], range.begin);
  }

  // Advances to the next block; returns whether there is one.
  bool next() { return go_to(block_end_); }

  // Advances to the next block that holds a row of a stream; all streams must be sparse.
  bool next_present() { return go_to(std::max(block_end_, least_row())); }

  const Range& range() const { return range_; }
  int64_t begin() const { return block_; }
  int64_t rows() const { return block_end_ - block_; }

  // Calls body(position, row of the block) for the rows of a sparse stream in this block.
  template <typename Body>
  void look(int64_t stream, Body&& body) const {
    visit(stream, body);
  }

  // The same, and moves the stream past them.
  template <typename Body>
  void take(int64_t stream, Body&& body) {
    positions_[stream] = visit(stream, body);
  }

 private:
  bool go_to(int64_t row) {
    block_ = row;
    block_end_ = std::min(row + range_.block, range_.end);
    return row < range_.end;
  }

  int64_t least_row() const {
    int64_t least = range_.end;
    for (int64_t i = 0; i < streams_.number; ++i) {
      const hvds_stream& stream = streams_.each[i];
      if (positions_[i] < stream.count) least = std::min<int64_t>(least, stream.indices[positions_[i]]);
    }
    return least;
  }

  template <typename Body>
  int64_t visit(int64_t number, Body& body) const {
    const hvds_stream& stream = streams_.each[number];
    int64_t at = positions_[number];
    for (; at < stream.count && stream.indices[at] < block_end_; ++at) body(at, stream.indices[at] - block_);
    return at;
  }

  const Streams& streams_;
  int64_t* positions_;
  Range range_;
  int64_t block_, block_end_;
};

// The rows of a block that are present in some stream.
class Marks {
 public:
  static constexpr int64_t kOverhang = 2;     // entries that `list` may write past the last one
  static constexpr int64_t kMultiple = 4096;  // blocks are a multiple of this

  explicit Marks(int64_t block) : words_(static_cast<size_t>(block / 64)) {}

  void set(int64_t row) { words_[static_cast<size_t>(row / 64)] |= uint64_t{1} << row % 64; }

  // Writes the marked rows in ascending order, clears all marks, and returns the number of rows.
  int64_t list(int32_t* rows);

  int64_t count() const;
  void clear() { std::fill(words_.begin(), words_.end(), 0); }

 private:
  std::vector<uint64_t> words_;
};

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_MERGE_WALK_H_
