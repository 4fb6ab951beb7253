#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "../common/cpu_features.h"
#include "../common/float_mode.h"
#include "float_passes.h"
#include "../common/elements.h"
#include "sparse.h"

namespace hvds {
namespace {

constexpr int64_t kWindow = 8192;        // elements processed at a time, in the first-level cache
constexpr int64_t kWorthATask = 131072;  // elements for which waking a thread pays off
constexpr int64_t kWorthSorting = 16;    // visits to runs, per entry, that cost as much as sorting it

// Calls body with a null pointer of the C++ type that represents a dtype.
template <typename Body>
auto with_type(hvds_dtype dtype, Body&& body) {
  if (dtype == HVDS_FLOAT16) return body(static_cast<const Half*>(nullptr));
  if (dtype == HVDS_BFLOAT16) return body(static_cast<const Bfloat16*>(nullptr));
  return body(static_cast<const float*>(nullptr));
}

int64_t item_size(hvds_dtype dtype) { return dtype == HVDS_FLOAT32 ? 4 : 2; }

// Cuts [0, size) into ranges of whole windows and calls body(task, first, last) for each, in parallel.
template <typename Body>
void parallel_ranges(const hvds_parallel* parallel, int tasks, int64_t size, Body&& body) {
  const int64_t windows = (size + kWindow - 1) / kWindow;
  parallel_for(parallel, tasks, [&](int task) {
    const StandardFloats standard;
    const int64_t first = windows * task / tasks * kWindow;
    const int64_t last = std::min(windows * (task + 1) / tasks * kWindow, size);
    body(task, first, last);
  });
}

#if defined(__x86_64__)
__attribute__((target("avx2,f16c"))) void widen_all_f16c(const Half* halves, int64_t count, float* wide) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    _mm256_storeu_ps(wide + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves + i))));
  }
  for (; i < count; ++i) wide[i] = widen(halves[i]);
}
#endif

void widen_all(const Half* halves, int64_t count, float* wide) {
#if defined(__x86_64__)
  if (hvds_isa() >= HVDS_AVX2) return widen_all_f16c(halves, count, wide);
#endif
  for (int64_t i = 0; i < count; ++i) wide[i] = widen(halves[i]);
}

int task_count(const hvds_parallel* parallel, int64_t size) {
  return static_cast<int>(std::clamp<int64_t>(size / kWorthATask, 1, thread_count(parallel)));
}

// ---- sum_parts ----

template <typename Element>
bool all_finite(const Element* elements, int64_t count) {
  return float_passes<Element>().all_finite(elements, count);
}

bool all_finite(const Half* halves, int64_t count) {
  uint16_t signs = 0;
  for (int64_t i = 0; i < count; ++i) {
    // Carries into the sign bit exactly if all bits of the exponent are set.
    signs |= uint16_t((halves[i].bits & 0x7fffu) + 0x0400u);
  }
  return (signs & 0x8000u) == 0;
}

// Sets sum [length] to the sum of the parts, `stride` apart; returns whether all sums are finite.
template <typename Part>
bool sum_window(const Part* parts, int count, int64_t stride, int64_t length, float* sum) {
  const FloatPasses<Part>& passes = float_passes<Part>();
  int part = std::min(count, kRowsAtOnce);
  bool finite = passes.sum[part - 1](parts, stride, sum, length);
  while (part < count) {
    const int rows = std::min(count - part, kRowsAtOnce);
    finite = passes.add[rows - 1](parts + part * stride, stride, sum, length);
    part += rows;
  }
  return finite;
}

// Halves are widened one part at a time: without the instruction for it, widening them bit by bit takes four times as
// long.
bool sum_window(const Half* parts, int count, int64_t stride, int64_t length, float* sum) {
  const FloatPasses<float>& passes = float_passes<float>();
  alignas(64) float wide[kWindow];
  widen_all(parts, length, sum);
  bool finite = count > 1 || passes.all_finite(sum, length);
  for (int part = 1; part < count; ++part) {
    widen_all(parts + part * stride, length, wide);
    finite = passes.add[0](wide, length, sum, length);
  }
  return finite;
}

// Sums elements first to last; returns whether all sums are finite.
template <typename Part>
bool sum_range(const Part* parts, int count, int64_t size, int64_t first, int64_t last, float* sum) {
  bool finite = true;
  for (int64_t begin = first; begin < last; begin += kWindow) {
    finite &= sum_window(parts + begin, count, size, std::min(kWindow, last - begin), sum + begin);
  }
  return finite;
}

// A sum is finite only if all its parts are, so the parts are examined only if a sum is not.
template <typename Part>
int32_t blame(const Part* parts, int count, int64_t size) {
  for (int part = 0; part < count; ++part) {
    if (!all_finite(parts + part * size, size)) return 1 + part;
  }
  return 1 + count;
}

// Whether the body returns true for all ranges that a vector is cut into.
template <typename Body>
bool all_of_ranges(const hvds_parallel* parallel, int64_t size, const Body& body) {
  const int tasks = task_count(parallel, size);
  std::vector<char> holds(tasks);
  parallel_ranges(parallel, tasks, size,
                  [&](int task, int64_t first, int64_t last) { holds[task] = body(first, last); });
  return std::all_of(holds.begin(), holds.end(), [](char each) { return each != 0; });
}

template <typename Part>
int32_t sum_parts(const Part* parts, int count, int64_t size, float* sum, const hvds_parallel* parallel) {
  const bool finite = all_of_ranges(parallel, size, [&](int64_t first, int64_t last) {
    return sum_range(parts, count, size, first, last, sum);
  });
  return finite ? 0 : blame(parts, count, size);
}

// ---- mean ----

// Divides elements first to last; returns whether all quotients are finite.
bool mean_range(const float* total, float divisor, float* mean, int64_t first, int64_t last) {
  return float_passes<float>().divide(total + first, divisor, mean + first, last - first);
}

bool mean_range(const float* total, float divisor, Bfloat16* mean, int64_t first, int64_t last) {
  return float_passes<Bfloat16>().divide(total + first, divisor, mean + first, last - first);
}

template <typename Element, typename Mean>
bool mean_range(const Element* total, float divisor, Mean* mean, int64_t first, int64_t last) {
  bool finite = true;
  for (int64_t begin = first; begin < last; begin += kWindow) {
    const int64_t length = std::min(kWindow, last - begin);
    for (int64_t i = begin; i < begin + length; ++i) mean[i] = narrow<Mean>(widen(total[i]) / divisor);
    finite &= all_finite(mean + begin, length);
  }
  return finite;
}

// ---- sparse_sum ----

// Entries with ascending indices, and their values.
template <typename Value>
struct Run {
  const int32_t* index;
  const int32_t* end;
  const Value* value;
};

// Sums of one window, and a bit for each element that has one.
struct Window {
  alignas(64) float sums[kWindow];
  uint64_t touched[kWindow / 64];
};

// Adds the entries of a run below `limit`, and advances the run past them.
template <typename Value>
void add_run(Run<Value>& run, int64_t origin, int64_t limit, Window& window) {
  for (; run.index != run.end && *run.index < limit; ++run.index, ++run.value) {
    const int64_t place = *run.index - origin;
    window.sums[place] += widen(*run.value);
    window.touched[place / 64] |= uint64_t{1} << (place % 64);
  }
}

// Writes the divided sums, and resets sums and bits to zero.
template <typename Out>
void finish(Window& window, float divisor, int64_t length, Out* out) {
  std::memset(static_cast<void*>(out), 0, length * sizeof(Out));
  for (int64_t word = 0; word * 64 < length; ++word) {
    for (uint64_t bits = window.touched[word]; bits != 0; bits &= bits - 1) {
      const int64_t place = word * 64 + __builtin_ctzll(bits);
      out[place] = narrow<Out>(window.sums[place] / divisor);
      window.sums[place] = 0;
    }
    window.touched[word] = 0;
  }
}

template <typename Value, typename Out>
void sum_runs(std::vector<Run<Value>> runs, int64_t offset, float divisor, int64_t first, int64_t last, Out* dense) {
  for (Run<Value>& run : runs) {
    const int32_t* start = std::lower_bound(run.index, run.end, first + offset);
    run.value += start - run.index;
    run.index = start;
  }
  Window window{};
  for (int64_t begin = first; begin < last; begin += kWindow) {
    const int64_t length = std::min(kWindow, last - begin);
    const int64_t origin = begin + offset;
    for (Run<Value>& run : runs) add_run(run, origin, origin + length, window);
    finish(window, divisor, length, dense + begin);
  }
}

// Whether any of `count` indices is smaller than its predecessor.
bool descends(const int32_t* indices, int64_t count) {
  int32_t found = 0;
  for (int64_t i = 0; i < count; ++i) found |= indices[i] < indices[i - 1];
  return found != 0;
}

// Cuts entries into ascending runs, most of which are long.
template <typename Value>
std::vector<Run<Value>> find_runs(const int32_t* indices, const Value* values, int64_t count) {
  constexpr int64_t kStride = 1024;
  std::vector<Run<Value>> runs;
  int64_t start = 0;
  const auto end_run = [&](int64_t end) {
    if (end > start) runs.push_back({indices + start, indices + end, values + start});
    start = end;
  };
  for (int64_t first = 1; first < count; first += kStride) {
    const int64_t last = std::min(first + kStride, count);
    if (!descends(indices + first, last - first)) continue;
    for (int64_t i = first; i < last; ++i) {
      if (indices[i] < indices[i - 1]) end_run(i);
    }
  }
  end_run(count);
  return runs;
}

// The position of the first index outside [offset, offset + size), or -1.
template <typename Value>
int64_t find_outside(const std::vector<Run<Value>>& runs, const int32_t* indices, int64_t offset, int64_t size) {
  const auto outside = [&](int64_t index) { return index < offset || index >= offset + size; };
  for (const Run<Value>& run : runs) {
    if (outside(run.index[0]) || outside(run.end[-1])) return std::find_if(run.index, run.end, outside) - indices;
  }
  return -1;
}

// Entries in ascending order of index; entries of equal index keep their order.
template <typename Value>
struct Sorted {
  std::vector<int32_t> indices;
  std::vector<Value> values;

  Sorted(const int32_t* unsorted, const Value* unsorted_values, int64_t count) : indices(count), values(count) {
    std::vector<std::pair<int32_t, int64_t>> order(count);
    for (int64_t i = 0; i < count; ++i) order[i] = {unsorted[i], i};
    std::sort(order.begin(), order.end());
    for (int64_t i = 0; i < count; ++i) {
      indices[i] = order[i].first;
      values[i] = unsorted_values[order[i].second];
    }
  }
};

template <typename Value, typename Out>
int64_t sparse_sum(const int32_t* indices, const Value* values, int64_t count, int64_t offset, float divisor,
                   Out* dense, int64_t size, const hvds_parallel* parallel) {
  std::vector<Run<Value>> runs = find_runs(indices, values, count);
  const int64_t misplaced = find_outside(runs, indices, offset, size);
  if (misplaced >= 0) return misplaced;
  // Every window visits every run; beyond some number of runs it is cheaper to sort all entries into one.
  const bool scattered = int64_t(runs.size()) * (size / kWindow) > kWorthSorting * count;
  const Sorted<Value> sorted(indices, values, scattered ? count : 0);
  if (scattered) runs = find_runs(sorted.indices.data(), sorted.values.data(), count);
  parallel_ranges(parallel, task_count(parallel, size), size,
                  [&](int, int64_t first, int64_t last) { sum_runs(runs, offset, divisor, first, last, dense); });
  return -1;
}

}  // namespace
}  // namespace hvds

extern "C" int32_t hvds_sum_parts(const void* parts, hvds_dtype dtype, int32_t count, int64_t size, float* sum,
                                  const hvds_parallel* parallel) {
  return hvds::with_type(dtype, [&](auto* type) {
    return hvds::sum_parts(static_cast<decltype(type)>(parts), count, size, sum, parallel);
  });
}

extern "C" bool hvds_all_finite(const float* x, int64_t size, const hvds_parallel* parallel) {
  return hvds::all_of_ranges(
      parallel, size, [&](int64_t first, int64_t last) { return hvds::all_finite(x + first, last - first); });
}

extern "C" bool hvds_mean(const void* total, hvds_dtype dtype, float divisor, void* mean, hvds_dtype mean_dtype,
                          int64_t size, const hvds_parallel* parallel) {
  return hvds::with_type(dtype, [&](auto* value) {
    return hvds::with_type(mean_dtype, [&](auto* element) {
      using Mean = std::remove_const_t<std::remove_pointer_t<decltype(element)>>;
      return hvds::all_of_ranges(parallel, size, [&](int64_t first, int64_t last) {
        return hvds::mean_range(static_cast<decltype(value)>(total), divisor, static_cast<Mean*>(mean), first, last);
      });
    });
  });
}

extern "C" bool hvds_add(const float* addend, void* vector, hvds_dtype dtype, int64_t size) {
  const hvds::StandardFloats standard;
  return hvds::with_type(dtype, [&](auto* type) {
    using Element = std::remove_const_t<std::remove_pointer_t<decltype(type)>>;
    auto* elements = static_cast<Element*>(vector);
    for (int64_t i = 0; i < size; ++i) {
      elements[i] = hvds::narrow<Element>(hvds::widen(elements[i]) + addend[i]);
    }
    return hvds::all_finite(elements, size);
  });
}

extern "C" void hvds_mark_nonfinite(const void* values, hvds_dtype dtype, int64_t size, void* marked) {
  std::memcpy(marked, values, size * hvds::item_size(dtype));
  hvds::with_type(dtype, [&](auto* element) {
    using Element = std::remove_const_t<std::remove_pointer_t<decltype(element)>>;
    *static_cast<Element*>(marked) = hvds::narrow<Element>(std::numeric_limits<float>::quiet_NaN());
  });
}

extern "C" int64_t hvds_message_words(int64_t count, hvds_dtype dtype) {
  return count + (count * hvds::item_size(dtype) + 3) / 4;
}

extern "C" void hvds_pack(const void* values, const int32_t* indices, int64_t count, hvds_dtype dtype,
                          int32_t* message) {
  if (count == 0) return;
  message[hvds_message_words(count, dtype) - 1] = 0;
  std::memcpy(message, indices, count * sizeof *indices);
  std::memcpy(message + count, values, count * hvds::item_size(dtype));
}

extern "C" void hvds_unpack(const int32_t* messages, const int32_t* counts, int64_t ranks, hvds_dtype dtype,
                            void* values, int32_t* indices) {
  auto* bytes = static_cast<char*>(values);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int64_t count = counts[rank];
    if (count == 0) continue;
    std::memcpy(indices, messages, count * sizeof *indices);
    std::memcpy(bytes, messages + count, count * hvds::item_size(dtype));
    messages += hvds_message_words(count, dtype);
    indices += count;
    bytes += count * hvds::item_size(dtype);
  }
}

extern "C" int64_t hvds_read_counts(const int32_t* messages, int64_t words, int64_t ranks, hvds_dtype dtype,
                                    int32_t* counts, bool* nonfinite) {
  *nonfinite = false;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    if (words < HVDS_HEADER_WORDS || messages[0] < 0 || (messages[1] & ~1) != 0) return rank;
    const int64_t length = HVDS_HEADER_WORDS + hvds_message_words(messages[0], dtype);
    if (words < length) return rank;
    counts[rank] = messages[0];
    *nonfinite |= messages[1] != 0;
    messages += length;
    words -= length;
  }
  return words == 0 ? -1 : ranks;
}

extern "C" int64_t hvds_sparse_sum(const void* values, hvds_dtype dtype, const int32_t* indices, int64_t count,
                                   int64_t offset, float divisor, void* dense, hvds_dtype dense_dtype, int64_t size,
                                   const hvds_parallel* parallel) {
  return hvds::with_type(dtype, [&](auto* value) {
    return hvds::with_type(dense_dtype, [&](auto* element) {
      using Out = std::remove_const_t<std::remove_pointer_t<decltype(element)>>;
      return hvds::sparse_sum(indices, static_cast<decltype(value)>(values), count, offset, divisor,
                              static_cast<Out*>(dense), size, parallel);
    });
  });
}
