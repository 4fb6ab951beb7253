// Runs the kernels of merge.h on blocks of exactly the right length, under the sanitizers.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "common/cpu_features.h"
#include "streams/merge.h"
#include "sanitizing.h"

namespace {

const int64_t kSizes[] = {0, 1, 2, 63, 64, 65, 4095, 4096, 4097, 200001};
const int64_t kWidths[] = {1, 3};
const hvds_dtype kTypes[] = {HVDS_FLOAT32, HVDS_FLOAT16, HVDS_FLOAT64};

int64_t item_size(hvds_dtype dtype) { return dtype == HVDS_FLOAT64 ? 8 : dtype == HVDS_FLOAT16 ? 2 : 4; }

// Each message has its own block, so that one byte too many is detected.
struct Message {
  std::unique_ptr<int32_t[]> words;
  int64_t length = 0;

  explicit Message(int64_t room) : words(new int32_t[static_cast<size_t>(room)]), length(room) {}

  hvds_stream read(const hvds_rows& rows) const {
    hvds_stream stream;
    int64_t at = 0;
    expect(hvds_stream_read(words.get(), length, &rows, &stream, &at) == HVDS_STREAM_OK, "a message is readable");
    return stream;
  }
};

std::unique_ptr<char[]> ones(int64_t count, hvds_dtype dtype) {
  const float one = 1;
  const double wide = 1;
  const uint16_t half = 0x3c00;
  const void* from = dtype == HVDS_FLOAT64 ? static_cast<const void*>(&wide) : &one;
  if (dtype == HVDS_FLOAT16) from = &half;
  std::unique_ptr<char[]> block(new char[static_cast<size_t>(count * item_size(dtype))]);
  for (int64_t i = 0; i < count; ++i) std::memcpy(block.get() + i * item_size(dtype), from, item_size(dtype));
  return block;
}

Message packed(std::vector<int32_t> indices, const hvds_rows& rows, int64_t dense_above) {
  const auto count = static_cast<int64_t>(indices.size());
  Message message(hvds_stream_room(std::min(count, rows.size), &rows, dense_above));
  const std::unique_ptr<char[]> values = ones(count * rows.width, rows.dtype);
  message.length =
      hvds_stream_pack(values.get(), indices.data(), count, &rows, HVDS_SUM, dense_above, message.words.get());
  return message;
}

std::vector<int32_t> drawn(int64_t size, int64_t count, bool ascending) {
  std::mt19937 random(static_cast<unsigned>(count));
  std::vector<int32_t> indices;
  for (int64_t i = 0; i < count && size > 0; ++i) indices.push_back(static_cast<int32_t>(random() % size));
  if (!ascending) return indices;
  std::sort(indices.begin(), indices.end());
  indices.erase(std::unique(indices.begin(), indices.end()), indices.end());
  return indices;
}

void check_reduce(const hvds_rows& rows, int64_t dense_above, const hvds_parallel* parallel) {
  std::vector<Message> messages;
  std::vector<hvds_stream> streams;
  for (const int64_t share : {2, 3, 100, 1000000}) {
    messages.push_back(packed(drawn(rows.size, rows.size / share, share != 3), rows, rows.size));
    streams.push_back(messages.back().read(rows));
    const auto number = static_cast<int64_t>(streams.size());
    Message result(hvds_stream_reduce_room(streams.data(), number, &rows, dense_above));
    const int64_t room = result.length;
    result.length =
        hvds_stream_reduce(streams.data(), number, &rows, HVDS_SUM, dense_above, result.words.get(), parallel);
    expect(result.length <= room, "the room suffices");
    streams.push_back(result.read(rows));
    Message dense(hvds_stream_room(rows.size, &rows, -1));
    dense.length = hvds_stream_reduce(streams.data(), number + 1, &rows, HVDS_MAX, -1, dense.words.get(), parallel);
    expect(dense.read(rows).indices == nullptr, "a dense message");
    streams.pop_back();
  }
}

void check_pieces(const hvds_rows& rows, int64_t form) {
  const Message message = packed(drawn(rows.size, rows.size / 3, true), rows, form);
  const hvds_stream whole = message.read(rows);
  for (const int64_t parts : {1, 3, 8}) {
    const std::vector<int64_t> dense_above(static_cast<size_t>(parts), rows.size / parts / 4);
    const std::unique_ptr<int32_t[]> lengths(new int32_t[static_cast<size_t>(parts)]);
    Message pieces(hvds_stream_split_words(&whole, &rows, parts, dense_above.data(), lengths.get()));
    hvds_stream_split(&whole, &rows, HVDS_SUM, parts, dense_above.data(), pieces.words.get());
    std::vector<hvds_stream> streams(static_cast<size_t>(parts));
    int64_t begin = 0, at = 0;
    for (int64_t part = 0; part < parts; ++part) {
      const hvds_rows piece = hvds_stream_piece(&rows, part, parts);
      expect(hvds_stream_read(pieces.words.get() + begin, pieces.length - begin, &piece, &streams[part], &at) ==
                 HVDS_STREAM_OK,
             "a piece is readable");
      begin += lengths[part];
    }
    for (const int64_t limit : {int64_t{-1}, rows.size}) {
      Message joined(hvds_stream_concat_words(streams.data(), parts, &rows, limit));
      hvds_stream_concat(streams.data(), parts, &rows, HVDS_SUM, limit, joined.words.get());
      const hvds_stream result = joined.read(rows);
      expect(result.count >= whole.count, "all rows come back");
    }
  }
}

void check_reading(const hvds_rows& rows, const hvds_parallel* parallel) {
  const Message message = packed(drawn(rows.size, rows.size / 3, true), rows, rows.size);
  const hvds_stream stream = message.read(rows);
  const int64_t row = rows.width * item_size(rows.dtype);
  const std::unique_ptr<char[]> dense(new char[static_cast<size_t>(rows.size * row)]);
  hvds_stream_dense(&stream, &rows, HVDS_MIN, 3, dense.get(), parallel);
  const std::unique_ptr<char[]> values(new char[static_cast<size_t>(stream.count * row)]);
  const std::unique_ptr<int32_t[]> indices(new int32_t[static_cast<size_t>(stream.count)]);
  hvds_stream_slices(&stream, &rows, values.get(), indices.get());
  for (int64_t length = 0; length < std::min<int64_t>(message.length, 6); ++length) {
    Message cut(length);
    std::memcpy(cut.words.get(), message.words.get(), static_cast<size_t>(4 * length));
    hvds_stream ignored;
    int64_t at = 0;
    expect(hvds_stream_read(cut.words.get(), length, &rows, &ignored, &at) == HVDS_STREAM_LENGTH, "a cut message");
  }
}

}  // namespace

int main() {
  for (int isa = 0; isa <= hvds_isa_detected(); ++isa) {
    hvds_set_isa(isa);
    for (const hvds_parallel* parallel : {static_cast<const hvds_parallel*>(nullptr), &kThreads}) {
      for (const int64_t size : kSizes) {
        for (const int64_t width : kWidths) {
          for (const hvds_dtype dtype : kTypes) {
            const hvds_rows rows{size, width, dtype};
            for (const int64_t dense_above : {int64_t{-1}, size / 2, size}) check_reduce(rows, dense_above, parallel);
            for (const int64_t form : {int64_t{-1}, size}) check_pieces(rows, form);
            check_reading(rows, parallel);
          }
        }
      }
    }
  }
  std::printf("checked %d results\n", checked);
  return 0;
}
