// Merges of several streams over a range of rows, for one element type and one operation.
#ifndef HVD_SPARSE_OPS_MERGE_ROWS_H_
#define HVD_SPARSE_OPS_MERGE_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>

#include "merge_elements.h"
#include "merge_pair.h"
#include "merge_walk.h"

namespace hvds {

// The memory of one task.
template <typename Element>
struct MergeMemory {
  explicit MergeMemory(int64_t block)
      : marks(block), rows(new int32_t[static_cast<size_t>(block + Marks::kOverhang)]),
        places(new int32_t[static_cast<size_t>(block)]), sums(new Element[static_cast<size_t>(block)]) {}

  Marks marks;
  std::unique_ptr<int32_t[]> rows, places;
  std::unique_ptr<Element[]> sums;
};

template <typename Element, typename Operation>
class Merge {
 public:
  Merge(const Streams& streams, int64_t width) : streams_(streams), width_(width) {}

  // Writes the rows of the walk that are present, and returns their number.
  int64_t sparse(Walk walk, MergeMemory<Element>& memory, int32_t* indices, Element* values) const {
    if (width_ > 1) return rows(walk, memory, indices, values);
    if (streams_.number > 2) return numbers(walk, memory, indices, values);
    const hvds_stream nothing{0, streams_.each->indices, streams_.each->values, 0};
    const hvds_stream& second = streams_.number == 2 ? streams_.each[1] : nothing;
    return PairMerge<Element, Operation>(streams_.each[0], second, indices, values)
        .run(walk.range().begin, walk.range().end);
  }

  // Writes all rows of the walk.
  void dense(Walk walk, Element* values) const {
    while (walk.next()) {
      Element* out = values + walk.begin() * width_;
      std::fill(out, out + walk.rows() * width_, neutral<Element, Operation>());
      for (int64_t i = 0; i < streams_.number; ++i) add_dense(i, walk, out);
    }
  }

 private:
  // Single numbers are combined at their place in the block; then those present are collected.
  int64_t numbers(Walk& walk, MergeMemory<Element>& memory, int32_t* indices, Element* values) const {
    const Element start = neutral<Element, Operation>();
    Element* const sums = memory.sums.get();
    const int32_t* const rows = memory.rows.get();
    std::fill(sums, sums + walk.range().block, start);
    int64_t written = 0;
    while (walk.next_present()) {
      for (int64_t i = 0; i < streams_.number; ++i) {
        const auto* from = static_cast<const Element*>(streams_.each[i].values);
        walk.take(i, [&](int64_t at, int64_t row) {
          sums[row] = combined<Element, Operation>(sums[row], from[at]);
          memory.marks.set(row);
        });
      }
      const int64_t count = memory.marks.list(memory.rows.get());
      const auto first = static_cast<int32_t>(walk.begin());
      for (int64_t i = 0; i < count; ++i) {
        const int32_t row = rows[i];
        indices[written + i] = first + row;
        values[written + i] = sums[row];
        sums[row] = start;
      }
      written += count;
    }
    return written;
  }

  // Rows are assigned their places first, and are combined there.
  int64_t rows(Walk& walk, MergeMemory<Element>& memory, int32_t* indices, Element* values) const {
    int64_t written = 0;
    while (walk.next_present()) {
      for (int64_t i = 0; i < streams_.number; ++i) {
        walk.look(i, [&](int64_t, int64_t row) { memory.marks.set(row); });
      }
      const int64_t count = memory.marks.list(memory.rows.get());
      const auto first = static_cast<int32_t>(walk.begin());
      for (int64_t i = 0; i < count; ++i) {
        indices[written + i] = first + memory.rows[i];
        memory.places[memory.rows[i]] = static_cast<int32_t>(i);
      }
      Element* const out = values + written * width_;
      std::fill(out, out + count * width_, neutral<Element, Operation>());
      for (int64_t i = 0; i < streams_.number; ++i) {
        walk.take(i, [&](int64_t at, int64_t row) { add_row(i, at, out + memory.places[row] * width_); });
      }
      written += count;
    }
    return written;
  }

  void add_dense(int64_t number, Walk& walk, Element* out) const {
    const hvds_stream& stream = streams_.each[number];
    if (stream.indices == nullptr) {
      return combine_run<Element, Operation>(out, row_of(stream, walk.begin()), walk.rows() * width_);
    }
    walk.take(number, [&](int64_t at, int64_t row) { add_row(number, at, out + row * width_); });
  }

  void add_row(int64_t number, int64_t at, Element* into) const {
    combine_run<Element, Operation>(into, row_of(streams_.each[number], at), width_);
  }

  const Element* row_of(const hvds_stream& stream, int64_t row) const {
    return static_cast<const Element*>(stream.values) + row * width_;
  }

  const Streams& streams_;
  int64_t width_;
};

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_MERGE_ROWS_H_
