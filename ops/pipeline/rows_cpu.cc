// The largest magnitudes of each row. A row is searched and written while it is in the first-level cache, so that
// memory is read and written once.
#include "rows.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

#include "../common/cpu_features.h"
#include "rows_kernels.h"
#include "rows_memory.h"

namespace hvds {

const RowKernels& row_kernels() {
#if defined(__x86_64__) && defined(__GNUC__)
  if (hvds_isa() == HVDS_AVX512) return kAvx512Rows;
  if (hvds_isa() == HVDS_AVX2) return kAvx2Rows;
#endif
  return kBaseRows;
}

namespace {

constexpr RowKey kNoKey = 0x80000000u;      // reached by no key
constexpr int64_t kWorthFolding = 256;      // elements per row
constexpr int64_t kMostFolded = 64;         // vectors that share their maxima
constexpr int64_t kMostAhead = 32768;       // bytes prefetched while a row is written: what fits the cache

struct Job {
  const RowKernels& kernels;
  const hvds_rows& shape;
  const char* x;
  char* y;          // or null
  char* values;     // or null
  char* positions;
  int kind;         // of the element: an index into the kernels' pairs
  bool streams;
};

// A bound that worked for the last row, and so may work for the next: rows of a batch are often alike. If it fails, a
// pass over the row was wasted, so it is tried again only some rows later.
class Guess {
 public:
  // 0 if there is no guess at present.
  RowKey lower() const { return pause_ == 0 ? lower_ : 0; }

  // Whether the bound found for this row will be the guess for the next.
  bool wanted() const { return pause_ <= 1; }

  // Records the bound found for a row without a guess.
  void found(RowKey lower) {
    lower_ = lower;
    pause_ = std::max<int64_t>(0, pause_ - 1);
  }

  void held() { next_pause_ = 1; }

  void failed() {
    pause_ = next_pause_;
    next_pause_ = std::min(2 * next_pause_, kLongestPause);
  }

 private:
  static constexpr int64_t kLongestPause = 64;  // rows

  RowKey lower_ = 0;
  int64_t pause_ = 0;
  int64_t next_pause_ = 1;
};

// The memory that a task needs for its rows.
struct Scratch {
  explicit Scratch(const Job& job)
      : keys(job.shape.width), maxima(job.shape.width), bits(job.shape.kept), positions(job.shape.kept) {}

  RowMemory<RowKey> keys, maxima;
  RowMemory<uint32_t> bits;
  RowMemory<int32_t> positions;
  Guess guess;
};

// Finds the key of rank `rank` among keys of which at least `rank` reach `low`; with `slack`, a key that up to `slack`
// more keys reach is good enough.
RowBounds search(const RowKernels& kernels, const RowKey* keys, int64_t count, int64_t rank, RowKey low, int64_t slack) {
  RowKey high = kNoKey;
  int64_t above = 0;  // reach `high`
  for (RowKey probe = low + 1; low + 1 < high; probe = low + (high - low) / 2) {
    const int64_t reached = kernels.count(keys, count, probe);
    if (reached >= rank && reached <= rank + slack) return {probe, probe, 0};
    if (reached > rank) {
      low = probe;
    } else {
      high = probe;
      above = reached;
    }
  }
  return {high, low, rank - above};
}

// If the row is divided into groups, at least `kept` groups reach the magnitude of rank `kept` among the groups'
// maxima, so elements below it are not kept. Two or three groups per kept element rule out most of the others; 0 if
// there are too few.
RowKey lower_bound(const Job& job, const char* row, Scratch& scratch) {
  const int64_t width = job.shape.width, kept = job.shape.kept;
  const int64_t each = std::min(2 * width / (5 * kept), std::min(kMostFolded, width / job.kernels.lanes));
  if (width < kWorthFolding || each < 2) return 0;
  const int64_t count = job.kernels.fold[job.kind](row, width, each, scratch.maxima.get());
  return count <= kept ? 0 : search(job.kernels, scratch.maxima.get(), count, kept, 0, kept / 8).edge;
}

// What is kept, given the keys that reach `lower`.
RowBounds bounds_among(const Job& job, int64_t count, RowKey lower, const Scratch& scratch) {
  if (count == job.shape.kept) return {lower, lower, 0};
  return search(job.kernels, scratch.keys.get(), count, job.shape.kept, lower, 0);
}

// Given all keys of a row: a bound for similar rows, or 0.
RowKey bound_for_others(const Job& job, const Scratch& scratch) {
  const int64_t width = job.shape.width, kept = job.shape.kept;
  const int64_t more = kept / 8 + 16;
  if (width < kWorthFolding || kept + 2 * more >= width) return 0;
  return search(job.kernels, scratch.keys.get(), width, kept + more, 0, more).edge;
}

RowBounds bounds_of(const Job& job, const char* row, Scratch& scratch) {
  const int64_t width = job.shape.width, kept = job.shape.kept;
  if (kept == width) return {0, 0, 0};
  RowKey* const keys = scratch.keys.get();
  if (const RowKey lower = scratch.guess.lower(); lower != 0) {
    const int64_t count = job.kernels.collect[job.kind](row, width, lower, keys);
    const bool holds = count >= kept && count <= 2 * kept + kWorthFolding;
    holds ? scratch.guess.held() : scratch.guess.failed();
    if (holds) return bounds_among(job, count, lower, scratch);
  }
  if (const RowKey lower = lower_bound(job, row, scratch); lower != 0) {
    scratch.guess.found(lower);
    return bounds_among(job, job.kernels.collect[job.kind](row, width, lower, keys), lower, scratch);
  }
  job.kernels.widen[job.kind](row, width, keys);
  scratch.guess.found(scratch.guess.wanted() ? bound_for_others(job, scratch) : 0);
  return bounds_among(job, width, 0, scratch);
}

void select(const Job& job, int64_t number, Scratch& scratch) {
  const int64_t item = item_bytes(job.shape), width = job.shape.width, kept = job.shape.kept;
  const char* const row = job.x + number * width * item;
  char* const dense = job.y == nullptr ? nullptr : job.y + number * width * item;
  uint32_t* const bits = job.values == nullptr && dense != nullptr ? nullptr : scratch.bits.get();
  const int64_t ahead = width * item <= kMostAhead ? width * item : 0;
  job.kernels.emit[job.kind](row, width, bounds_of(job, row, scratch),
                             {dense, job.streams, ahead, bits, scratch.positions.get()});
  write_positions(job.shape, scratch.positions.get(), number, job.positions);
  if (job.values != nullptr) write_bits(job.shape, bits, job.values + number * kept * item);
}

// Processes rows first to end - 1. Returns whether there was enough memory.
bool select_run(const Job& job, int64_t first, int64_t end) try {
  Scratch scratch(job);
  for (int64_t row = first; row < end; ++row) select(job, row, scratch);
  if (job.streams) job.kernels.end_streaming();
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

}  // namespace
}  // namespace hvds

extern "C" int hvds_largest_rows(const hvds_rows* shape, const void* x, void* y, void* values, void* positions,
                                 const hvds_parallel* parallel) {
  using namespace hvds;
  const int64_t item = item_bytes(*shape);
  if (shape->kept == 0) {
    if (y != nullptr) std::memset(y, 0, shape->rows * shape->width * item);
    return 0;
  }
  const Job job{row_kernels(),
                *shape,
                static_cast<const char*>(x),
                static_cast<char*>(y),
                static_cast<char*>(values),
                static_cast<char*>(positions),
                item == 4 ? 0 : 1,
                y != nullptr && streams(*shape, y)};
  std::atomic<bool> whole{true};
  const int tasks = row_tasks(*shape, parallel);
  parallel_for(parallel, tasks, [&](int task) {
    if (!select_run(job, shape->rows * task / tasks, shape->rows * (task + 1) / tasks)) whole = false;
  });
  return whole ? 0 : -1;
}
