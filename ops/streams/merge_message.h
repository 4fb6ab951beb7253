// The layout of a message (merge.h).
#ifndef HVD_SPARSE_OPS_MERGE_MESSAGE_H_
#define HVD_SPARSE_OPS_MERGE_MESSAGE_H_

#include <cstdint>
#include <cstring>

#include "merge.h"
#include "merge_elements.h"

namespace hvds {

constexpr int64_t kHeaderWords = 2;

inline int64_t even(int64_t words) { return (words + 1) & ~int64_t{1}; }

inline int64_t value_bytes(int64_t count, const hvds_rows& rows) {
  return count * rows.width * item_size(rows.dtype);
}

inline int64_t value_words(int64_t count, const hvds_rows& rows) { return even((value_bytes(count, rows) + 3) / 4); }

// The number of words before the values.
inline int64_t words_before_values(bool dense, int64_t count) { return kHeaderWords + (dense ? 0 : even(count)); }

// Writes the header and the padding; the values between them are written separately.
inline void write_frame(bool dense, int64_t count, const hvds_rows& rows, int32_t* message) {
  message[0] = dense;
  message[1] = static_cast<int32_t>(count);
  const int64_t begin = words_before_values(dense, count);
  if (!dense && count % 2 != 0) message[begin - 1] = 0;
  auto* values = reinterpret_cast<char*>(message + begin);
  const int64_t bytes = value_bytes(count, rows);
  std::memset(values + bytes, 0, static_cast<size_t>(4 * value_words(count, rows) - bytes));
}

inline int32_t* indices_in(int32_t* message) { return message + kHeaderWords; }

template <typename Element>
Element* values_in(int32_t* message, bool dense, int64_t count) {
  return reinterpret_cast<Element*>(message + words_before_values(dense, count));
}

// The first row of a piece of a vector that is cut into `parts`.
inline int64_t piece_begin(const hvds_rows& rows, int64_t piece, int64_t parts) { return piece * rows.size / parts; }

inline hvds_rows piece_of(const hvds_rows& rows, int64_t piece, int64_t parts) {
  return {piece_begin(rows, piece + 1, parts) - piece_begin(rows, piece, parts), rows.width, rows.dtype};
}

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_MERGE_MESSAGE_H_
