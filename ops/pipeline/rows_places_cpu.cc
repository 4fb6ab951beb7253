// Rows that are zero except at given positions. A row is assembled in the first-level cache and then copied to memory.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

#include "rows.h"
#include "rows_kernels.h"
#include "rows_memory.h"

namespace hvds {
namespace {

constexpr int64_t kRight = -1;
constexpr int64_t kOutOfMemory = -2;

// Whether positions ascend and lie within a row.
template <typename Position>
bool fits(const Position* positions, int64_t count, int64_t width) {
  bool ascends = true;
  for (int64_t i = 1; i < count; ++i) ascends &= positions[i - 1] < positions[i];
  return count == 0 || (ascends && positions[0] >= 0 && positions[count - 1] < width);
}

// Keeps the lower of two results of tasks: the first invalid row.
void blame(std::atomic<int64_t>& culprit, int64_t row) {
  int64_t known = culprit;
  while ((known == kRight || row < known) && !culprit.compare_exchange_weak(known, row)) {
  }
}

// Calls function(first row, end) in tasks; function returns kRight or the number of the invalid row.
template <typename Function>
int64_t each_run(const hvds_rows& shape, const hvds_parallel* parallel, const Function& function) {
  std::atomic<int64_t> culprit{kRight};
  const int tasks = row_tasks(shape, parallel);
  parallel_for(parallel, tasks, [&](int task) {
    const int64_t wrong = function(shape.rows * task / tasks, shape.rows * (task + 1) / tasks);
    if (wrong != kRight) blame(culprit, wrong);
  });
  return culprit;
}

template <typename Element, typename Position>
struct Rows {
  const hvds_rows& shape;
  const Position* positions;

  const Position* of(int64_t row) const { return positions + row * shape.kept; }
  bool fit(int64_t row) const { return fits(of(row), shape.kept, shape.width); }
};

// Writes rows first to end - 1: element(row, i, position) at position i, else 0.
template <typename Element, typename Position, typename Source>
int64_t write_run(const Rows<Element, Position>& rows, int64_t first, int64_t end, Element* y, const Source& element) try {
  const int64_t width = rows.shape.width, kept = rows.shape.kept;
  const auto bytes = static_cast<int64_t>(width * sizeof(Element));
  const RowKernels& kernels = row_kernels();
  const bool past_caches = streams(rows.shape, y);
  const RowMemory<Element> memory(width);
  Element* const line = memory.get();
  std::fill_n(line, width, Element{0});
  for (int64_t row = first; row < end; ++row) {
    if (!rows.fit(row)) return row;
    const Position* const at = rows.of(row);
    for (int64_t i = 0; i < kept; ++i) line[at[i]] = element(row, i, at[i]);
    if (past_caches) kernels.stream(line, bytes, y + row * width);
    else std::memcpy(y + row * width, line, bytes);
    for (int64_t i = 0; i < kept; ++i) line[at[i]] = Element{0};
  }
  if (past_caches) kernels.end_streaming();
  return kRight;
} catch (const std::bad_alloc&) {
  return kOutOfMemory;
}

template <typename Element, typename Position>
int64_t place(const Rows<Element, Position>& rows, const Element* values, Element* y, const hvds_parallel* parallel) {
  const int64_t kept = rows.shape.kept;
  const auto element = [=](int64_t row, int64_t i, int64_t) { return values[row * kept + i]; };
  return each_run(rows.shape, parallel,
                  [&](int64_t first, int64_t end) { return write_run(rows, first, end, y, element); });
}

template <typename Element, typename Position>
int64_t mask(const Rows<Element, Position>& rows, const Element* x, Element* y, const hvds_parallel* parallel) {
  const int64_t width = rows.shape.width;
  const auto element = [=](int64_t row, int64_t, int64_t position) { return x[row * width + position]; };
  return each_run(rows.shape, parallel,
                  [&](int64_t first, int64_t end) { return write_run(rows, first, end, y, element); });
}

template <typename Element, typename Position>
int64_t gather(const Rows<Element, Position>& rows, const Element* x, Element* values, const hvds_parallel* parallel) {
  const int64_t width = rows.shape.width, kept = rows.shape.kept;
  return each_run(rows.shape, parallel, [&](int64_t first, int64_t end) {
    for (int64_t row = first; row < end; ++row) {
      if (!rows.fit(row)) return row;
      const Position* const at = rows.of(row);
      for (int64_t i = 0; i < kept; ++i) values[row * kept + i] = x[row * width + at[i]];
    }
    return kRight;
  });
}

// Calls function(rows, from, to) with the types of elements and positions.
template <typename Function>
int64_t typed(const hvds_rows& shape, const void* from, const void* positions, void* to, const Function& function) {
  const auto with = [&](auto element, const auto* places) {
    using Element = decltype(element);
    using Position = std::remove_const_t<std::remove_pointer_t<decltype(places)>>;
    return function(Rows<Element, Position>{shape, places}, static_cast<const Element*>(from),
                    static_cast<Element*>(to));
  };
  const auto* const wide = static_cast<const int32_t*>(positions);
  const auto* const narrow = static_cast<const uint16_t*>(positions);
  if (shape.dtype == HVDS_FLOAT32) return shape.narrow ? with(uint32_t{}, narrow) : with(uint32_t{}, wide);
  return shape.narrow ? with(uint16_t{}, narrow) : with(uint16_t{}, wide);
}

}  // namespace
}  // namespace hvds

extern "C" int64_t hvds_place_rows(const hvds_rows* shape, const void* values, const void* positions, void* y,
                                   const hvds_parallel* parallel) {
  return hvds::typed(*shape, values, positions, y, [&](const auto& rows, const auto* from, auto* to) {
    return hvds::place(rows, from, to, parallel);
  });
}

extern "C" int64_t hvds_gather_rows(const hvds_rows* shape, const void* x, const void* positions, void* values,
                                    const hvds_parallel* parallel) {
  return hvds::typed(*shape, x, positions, values, [&](const auto& rows, const auto* from, auto* to) {
    return hvds::gather(rows, from, to, parallel);
  });
}

extern "C" int64_t hvds_mask_rows(const hvds_rows* shape, const void* x, const void* positions, void* y,
                                  const hvds_parallel* parallel) {
  return hvds::typed(*shape, x, positions, y, [&](const auto& rows, const auto* from, auto* to) {
    return hvds::mask(rows, from, to, parallel);
  });
}
