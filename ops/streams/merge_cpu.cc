// Reads, cuts, joins and expands messages (merge.h).
#include <algorithm>
#include <cstring>
#include <numeric>
#include <type_traits>

#include "../common/float_mode.h"
#include "merge_message.h"

namespace hvds {
namespace {

constexpr int64_t kWorthATask = 131072;  // elements for which waking a thread pays off
constexpr int64_t kStretch = 1024;       // indices examined before a decision

bool ascending(const int32_t* indices, int64_t count) {
  int32_t misplaced = 0;
  for (int64_t i = 1; i < count; ++i) misplaced |= indices[i - 1] >= indices[i];
  return misplaced == 0;
}

// The first position whose index is not greater than the one before it, or -1.
int64_t first_misplaced(const int32_t* indices, int64_t count) {
  for (int64_t begin = 0; begin < count; begin += kStretch) {
    const int64_t end = std::min(begin + kStretch + 1, count);  // the next one begins with this one's last index
    if (ascending(indices + begin, end - begin)) continue;
    for (int64_t i = begin + 1; i < end; ++i) {
      if (indices[i - 1] >= indices[i]) return i;
    }
  }
  return -1;
}

hvds_stream_fault check_indices(const hvds_stream& stream, int64_t size, int64_t* at) {
  if (stream.count == 0) return HVDS_STREAM_OK;
  *at = first_misplaced(stream.indices, stream.count);
  if (*at >= 0) return HVDS_STREAM_ORDER;
  if (stream.indices[0] >= 0 && stream.indices[stream.count - 1] < size) return HVDS_STREAM_OK;
  *at = hvds_stream_outside(stream.indices, stream.count, size);
  return HVDS_STREAM_BOUNDS;
}

// The rows of a stream in [begin, end) that are present, as positions.
struct Run {
  int64_t first;
  int64_t last;
  int64_t count() const { return last - first; }
};

Run run_of(const hvds_stream& stream, int64_t begin, int64_t end) {
  if (stream.indices == nullptr) return {begin, end};
  const int32_t* const last = stream.indices + stream.count;
  return {std::lower_bound(stream.indices, last, begin) - stream.indices,
          std::lower_bound(stream.indices, last, end) - stream.indices};
}

// Expands a run of a stream into rows [begin, end) of a vector; absent rows are neutral.
template <typename Element, typename Operation>
void spread(const hvds_stream& stream, const Run& run, int64_t begin, int64_t end, int64_t width, Element* out) {
  const auto* values = static_cast<const Element*>(stream.values);
  if (stream.indices == nullptr) {
    std::memcpy(out, values + begin * width, static_cast<size_t>(end - begin) * width * sizeof(Element));
    return;
  }
  std::fill(out, out + (end - begin) * width, neutral<Element, Operation>());
  for (int64_t i = run.first; i < run.last; ++i) {
    std::copy_n(values + i * width, width, out + (stream.indices[i] - begin) * width);
  }
}

// Writes the indices of a run, shifted by `by`.
void shift_indices(const hvds_stream& stream, const Run& run, int64_t by, int32_t* out) {
  const auto offset = static_cast<int32_t>(by);
  if (stream.indices == nullptr) {
    std::iota(out, out + run.count(), static_cast<int32_t>(run.first) + offset);
    return;
  }
  for (int64_t i = 0; i < run.count(); ++i) out[i] = stream.indices[run.first + i] + offset;
}

// Writes one piece as a message.
template <typename Element, typename Operation>
void write_piece(const hvds_stream& stream, const hvds_rows& rows, int64_t begin, const hvds_rows& piece, bool dense,
                 int32_t* message) {
  const Run run = run_of(stream, begin, begin + piece.size);
  const int64_t count = dense ? piece.size : run.count();
  write_frame(dense, count, piece, message);
  auto* out = values_in<Element>(message, dense, count);
  if (dense) return spread<Element, Operation>(stream, run, begin, begin + piece.size, rows.width, out);
  shift_indices(stream, run, -begin, indices_in(message));
  const auto* values = static_cast<const Element*>(stream.values);
  std::copy_n(values + run.first * rows.width, run.count() * rows.width, out);
}

int64_t sum_of_counts(const hvds_stream* streams, int64_t number) {
  return std::accumulate(streams, streams + number, int64_t{0},
                         [](int64_t sum, const hvds_stream& stream) { return sum + stream.count; });
}

template <typename Element>
void divide(Element* values, int64_t count, double divisor) {
  using Numbers = Arithmetic<Element>;
  const auto by = static_cast<typename Numbers::Number>(divisor);
  for (int64_t i = 0; i < count; ++i) values[i] = Numbers::narrow(Numbers::widen(values[i]) / by);
}

// Writes rows [begin, end) of the whole vector.
template <typename Element, typename Operation>
void write_dense(const hvds_stream& stream, int64_t begin, int64_t end, int64_t width, double divisor, Element* out) {
  const Run run = run_of(stream, begin, end);
  spread<Element, Operation>(stream, run, begin, end, width, out);
  if (divisor == 1) return;
  if (stream.indices == nullptr) return divide(out, (end - begin) * width, divisor);
  for (int64_t i = run.first; i < run.last; ++i) divide(out + (stream.indices[i] - begin) * width, width, divisor);
}

}  // namespace
}  // namespace hvds

using hvds::piece_begin;
using hvds::piece_of;
using hvds::with_element;
using hvds::with_operation;

extern "C" hvds_stream_fault hvds_stream_read(const int32_t* words, int64_t length, const hvds_rows* rows,
                                              hvds_stream* stream, int64_t* at) {
  *at = length;
  *stream = {0, nullptr, nullptr, 0};
  if (length < hvds::kHeaderWords) return HVDS_STREAM_LENGTH;
  *at = 0;
  if (words[0] != 0 && words[0] != 1) return HVDS_STREAM_FORM;
  const bool dense = words[0] == 1;
  stream->count = words[1];
  if (stream->count < 0 || stream->count > rows->size || (dense && stream->count != rows->size)) {
    return HVDS_STREAM_COUNT;
  }
  stream->words = hvds_stream_words(dense, stream->count, rows);
  *at = length;
  if (stream->words > length) return HVDS_STREAM_LENGTH;
  stream->values = words + hvds::words_before_values(dense, stream->count);
  if (dense) return HVDS_STREAM_OK;
  stream->indices = words + hvds::kHeaderWords;
  return hvds::check_indices(*stream, rows->size, at);
}

extern "C" int64_t hvds_stream_words(bool dense, int64_t count, const hvds_rows* rows) {
  return hvds::words_before_values(dense, count) + hvds::value_words(count, *rows);
}

extern "C" int64_t hvds_stream_room(int64_t most, const hvds_rows* rows, int64_t dense_above) {
  const int64_t sparse = hvds_stream_words(false, std::clamp<int64_t>(dense_above, 0, most), rows);
  return most <= dense_above ? sparse : std::max(sparse, hvds_stream_words(true, rows->size, rows));
}

extern "C" int64_t hvds_stream_outside(const int32_t* indices, int64_t count, int64_t size) {
  for (int64_t begin = 0; begin < count; begin += hvds::kStretch) {
    const int64_t end = std::min(begin + hvds::kStretch, count);
    uint32_t outside = 0;
    for (int64_t i = begin; i < end; ++i) outside |= static_cast<uint32_t>(indices[i]) >= static_cast<uint32_t>(size);
    if (outside == 0) continue;
    for (int64_t i = begin; i < end; ++i) {
      if (indices[i] < 0 || indices[i] >= size) return i;
    }
  }
  return -1;
}

extern "C" hvds_rows hvds_stream_piece(const hvds_rows* rows, int64_t part, int64_t parts) {
  return piece_of(*rows, part, parts);
}

extern "C" int64_t hvds_stream_split_words(const hvds_stream* stream, const hvds_rows* rows, int64_t parts,
                                           const int64_t* dense_above, int32_t* lengths) {
  int64_t total = 0;
  for (int64_t part = 0; part < parts; ++part) {
    const hvds_rows piece = piece_of(*rows, part, parts);
    const int64_t begin = piece_begin(*rows, part, parts);
    const int64_t count = hvds::run_of(*stream, begin, begin + piece.size).count();
    const bool dense = count > dense_above[part];
    const int64_t words = hvds_stream_words(dense, dense ? piece.size : count, &piece);
    lengths[part] = static_cast<int32_t>(words);
    total += words;
  }
  return total;
}

extern "C" void hvds_stream_split(const hvds_stream* stream, const hvds_rows* rows, hvds_combine combine,
                                  int64_t parts, const int64_t* dense_above, int32_t* messages) {
  with_operation(rows->dtype, combine, [&](auto* element, auto operation) {
    for (int64_t part = 0; part < parts; ++part) {
      const hvds_rows piece = piece_of(*rows, part, parts);
      const int64_t begin = piece_begin(*rows, part, parts);
      const int64_t count = hvds::run_of(*stream, begin, begin + piece.size).count();
      const bool dense = count > dense_above[part];
      hvds::write_piece<std::remove_pointer_t<decltype(element)>, decltype(operation)>(*stream, *rows, begin, piece,
                                                                                      dense, messages);
      messages += hvds_stream_words(dense, dense ? piece.size : count, &piece);
    }
  });
}

extern "C" int64_t hvds_stream_concat_words(const hvds_stream* pieces, int64_t parts, const hvds_rows* rows,
                                            int64_t dense_above) {
  const int64_t count = hvds::sum_of_counts(pieces, parts);
  const bool dense = count > dense_above;
  return hvds_stream_words(dense, dense ? rows->size : count, rows);
}

extern "C" void hvds_stream_concat(const hvds_stream* pieces, int64_t parts, const hvds_rows* rows,
                                   hvds_combine combine, int64_t dense_above, int32_t* message) {
  const int64_t present = hvds::sum_of_counts(pieces, parts);
  const bool dense = present > dense_above;
  const int64_t count = dense ? rows->size : present;
  hvds::write_frame(dense, count, *rows, message);
  with_operation(rows->dtype, combine, [&](auto* element, auto operation) {
    using Element = std::remove_pointer_t<decltype(element)>;
    auto* out = hvds::values_in<Element>(message, dense, count);
    int32_t* indices = hvds::indices_in(message);
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t size = piece_of(*rows, part, parts).size;
      const hvds::Run run = hvds::run_of(pieces[part], 0, size);
      if (dense) {
        hvds::spread<Element, decltype(operation)>(pieces[part], run, 0, size, rows->width, out);
        out += size * rows->width;
        continue;
      }
      hvds::shift_indices(pieces[part], run, piece_begin(*rows, part, parts), indices);
      out = std::copy_n(static_cast<const Element*>(pieces[part].values), run.count() * rows->width, out);
      indices += run.count();
    }
  });
}

extern "C" void hvds_stream_dense(const hvds_stream* stream, const hvds_rows* rows, hvds_combine combine,
                                  double divisor, void* values, const hvds_parallel* parallel) {
  const int64_t most = std::max<int64_t>(1, std::min<int64_t>(hvds::thread_count(parallel), rows->size));
  const int64_t tasks = std::clamp<int64_t>(rows->size * rows->width / hvds::kWorthATask, 1, most);
  with_operation(rows->dtype, combine, [&](auto* element, auto operation) {
    using Element = std::remove_pointer_t<decltype(element)>;
    hvds::parallel_for(parallel, static_cast<int>(tasks), [&](int task) {
      const hvds::StandardFloats standard;
      const int64_t begin = piece_begin(*rows, task, tasks);
      hvds::write_dense<Element, decltype(operation)>(*stream, begin, piece_begin(*rows, task + 1, tasks), rows->width,
                                                      divisor, static_cast<Element*>(values) + begin * rows->width);
    });
  });
}

extern "C" void hvds_stream_slices(const hvds_stream* stream, const hvds_rows* rows, void* values, int32_t* indices) {
  std::memcpy(values, stream->values, static_cast<size_t>(hvds::value_bytes(stream->count, *rows)));
  hvds::shift_indices(*stream, {0, stream->count}, 0, indices);
}
