// Merges several streams into one (merge.h), in one pass over them, block by block of rows.
#include <algorithm>
#include <cstring>
#include <new>
#include <type_traits>
#include <vector>

#include "../common/float_mode.h"
#include "merge_message.h"
#include "merge_rows.h"

namespace hvds {
namespace {

constexpr int64_t kWorthATask = 65536;    // elements for which waking a thread pays off
constexpr int64_t kLargestBlock = 32768;  // rows
constexpr int64_t kWorthABlock = 1024;    // entries for which scanning a block's bitmap pays off

struct Totals {
  int64_t rows = 0;
  bool dense = false;
};

Totals totals_of(const Streams& streams) {
  Totals totals;
  for (const hvds_stream& stream : streams) {
    totals.rows += stream.count;
    totals.dense = totals.dense || stream.indices == nullptr;
  }
  return totals;
}

// A block's elements fit the first-level cache, unless such a block would be almost empty.
int64_t block_of(const Totals& totals, const hvds_rows& rows) {
  int64_t block = Marks::kMultiple;
  while (block < kLargestBlock && totals.rows * block < kWorthABlock * rows.size) block *= 2;
  return block;
}

// The work, cut into runs of rows; everything that tasks need is allocated before they begin, as they must not throw.
class Tasks {
 public:
  Tasks(const Streams& streams, const hvds_rows& rows, const Totals& totals, const hvds_parallel* parallel)
      : streams_(streams), rows_(rows), parallel_(parallel), block_(block_of(totals, rows)) {
    const int64_t most = std::max<int64_t>(1, std::min<int64_t>(thread_count(parallel), rows.size));
    count_ = static_cast<int>(std::clamp<int64_t>(totals.rows * rows.width / kWorthATask, 1, most));
    positions_.resize(static_cast<size_t>(count_ * streams.number));
  }

  int count() const { return count_; }
  int64_t block() const { return block_; }
  int64_t begin_of(int task) const { return piece_begin(rows_, task, count_); }

  // Calls body(task, walk), in parallel.
  template <typename Body>
  void for_each(Body&& body) {
    parallel_for(parallel_, count_, [&](int task) {
      const StandardFloats standard;
      int64_t* positions = positions_.data() + task * streams_.number;
      body(task, Walk(streams_, {begin_of(task), begin_of(task + 1), block_}, positions));
    });
  }

 private:
  const Streams& streams_;
  const hvds_rows& rows_;
  const hvds_parallel* parallel_;
  int64_t block_;
  int count_;
  std::vector<int64_t> positions_;
};

int64_t count_union(const Streams& streams, Tasks& tasks) {
  std::vector<int64_t> counts(static_cast<size_t>(tasks.count()));
  std::vector<Marks> memory(static_cast<size_t>(tasks.count()), Marks(tasks.block()));
  tasks.for_each([&](int task, Walk walk) {
    Marks& marks = memory[static_cast<size_t>(task)];
    while (walk.next_present()) {
      for (int64_t i = 0; i < streams.number; ++i) {
        walk.take(i, [&](int64_t, int64_t row) { marks.set(row); });
      }
      counts[task] += marks.count();
      marks.clear();
    }
  });
  int64_t count = 0;
  for (const int64_t each : counts) count += each;
  return count;
}

// Where a task's rows would begin if no row were in two streams.
int64_t most_before(const Streams& streams, int64_t row) {
  int64_t before = 0;
  for (const hvds_stream& stream : streams) before += position_of(stream, row);
  return before;
}

// Each task writes to the last place where its rows can begin; then they are moved together.
template <typename Element, typename Operation>
int64_t reduce_to_sparse(const Streams& streams, const hvds_rows& rows, int64_t most, Tasks& tasks, int32_t* message) {
  const Merge<Element, Operation> merge(streams, rows.width);
  std::vector<int64_t> begins(static_cast<size_t>(tasks.count())), counts(static_cast<size_t>(tasks.count()));
  std::vector<MergeMemory<Element>> memory;
  for (int task = 0; task < tasks.count(); ++task) memory.emplace_back(tasks.block());
  int32_t* indices = indices_in(message);
  auto* values = values_in<Element>(message, false, most);
  tasks.for_each([&](int task, const Walk& walk) {
    const int64_t begin = begins[task] = most_before(streams, tasks.begin_of(task));
    counts[task] = merge.sparse(walk, memory[static_cast<size_t>(task)], indices + begin, values + begin * rows.width);
  });
  int64_t count = 0;
  for (int task = 0; task < tasks.count(); ++task) {
    std::memmove(indices + count, indices + begins[task], static_cast<size_t>(counts[task]) * sizeof *indices);
    count += counts[task];
  }
  auto* out = values_in<Element>(message, false, count);
  for (int task = 0; task < tasks.count(); ++task) {
    const int64_t length = counts[task] * rows.width;
    std::memmove(out, values + begins[task] * rows.width, static_cast<size_t>(length) * sizeof *out);
    out += length;
  }
  write_frame(false, count, rows, message);
  return hvds_stream_words(false, count, &rows);
}

template <typename Element, typename Operation>
int64_t reduce_to_all(const Streams& streams, const hvds_rows& rows, bool dense, Tasks& tasks, int32_t* message) {
  const Merge<Element, Operation> merge(streams, rows.width);
  auto* values = values_in<Element>(message, dense, rows.size);
  tasks.for_each([&](int, const Walk& walk) { merge.dense(walk, values); });
  if (!dense) {
    for (int64_t row = 0; row < rows.size; ++row) indices_in(message)[row] = static_cast<int32_t>(row);
  }
  write_frame(dense, rows.size, rows, message);
  return hvds_stream_words(dense, rows.size, &rows);
}

template <typename Element, typename Operation>
int64_t reduce(const Streams& streams, const hvds_rows& rows, int64_t dense_above, int32_t* message,
               const hvds_parallel* parallel) {
  const Totals totals = totals_of(streams);
  Tasks tasks(streams, rows, totals, parallel);
  if (totals.dense) {
    return reduce_to_all<Element, Operation>(streams, rows, rows.size > dense_above, tasks, message);
  }
  if (totals.rows > dense_above && count_union(streams, tasks) > dense_above) {
    return reduce_to_all<Element, Operation>(streams, rows, true, tasks, message);
  }
  return reduce_to_sparse<Element, Operation>(streams, rows, totals.rows, tasks, message);
}

}  // namespace
}  // namespace hvds

extern "C" int64_t hvds_stream_reduce_room(const hvds_stream* streams, int64_t number, const hvds_rows* rows,
                                           int64_t dense_above) {
  const hvds::Totals totals = hvds::totals_of({streams, number});
  if (totals.dense) return hvds_stream_words(rows->size > dense_above, rows->size, rows);
  const int64_t sparse = hvds_stream_words(false, totals.rows, rows);
  return totals.rows <= dense_above ? sparse : std::max(sparse, hvds_stream_words(true, rows->size, rows));
}

extern "C" int64_t hvds_stream_reduce(const hvds_stream* streams, int64_t number, const hvds_rows* rows,
                                      hvds_combine combine, int64_t dense_above, int32_t* message,
                                      const hvds_parallel* parallel) try {
  return hvds::with_operation(rows->dtype, combine, [&](auto* element, auto operation) {
    using Element = std::remove_pointer_t<decltype(element)>;
    return hvds::reduce<Element, decltype(operation)>({streams, number}, *rows, dense_above, message, parallel);
  });
} catch (const std::bad_alloc&) {
  return -1;
}
