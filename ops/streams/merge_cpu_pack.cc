// Converts values and indices in any order to a message (merge.h).
#include <algorithm>
#include <cstring>
#include <new>
#include <type_traits>
#include <vector>

#include "../common/float_mode.h"
#include "merge_message.h"

namespace hvds {
namespace {

constexpr int kDigitBits = 11;
constexpr size_t kDigits = size_t{1} << kDigitBits;
constexpr int64_t kFew = 2048;  // keys that are sorted faster by comparisons

bool strictly_ascending(const int32_t* indices, int64_t count) {
  int32_t misplaced = 0;
  for (int64_t i = 1; i < count; ++i) misplaced |= indices[i - 1] >= indices[i];
  return misplaced == 0;
}

// An index in the upper half, and its position in the lower half.
using Key = uint64_t;

inline Key key_of(int32_t index, int64_t position) {
  return static_cast<Key>(index) << 32 | static_cast<Key>(position);
}
inline int64_t position_of(Key key) { return static_cast<int64_t>(key & 0xffffffffu); }
inline int32_t index_of(Key key) { return static_cast<int32_t>(key >> 32); }

// Radix sort by the digits of the index, lowest first, which is stable.
void sort_by_digits(std::vector<Key>& keys, int64_t size) {
  std::vector<Key> other(keys.size());
  for (int shift = 32; (size - 1) >> (shift - 32) > 0; shift += kDigitBits) {
    int64_t begins[kDigits + 1] = {};
    for (const Key key : keys) ++begins[(key >> shift) % kDigits + 1];
    for (size_t digit = 1; digit < kDigits; ++digit) begins[digit] += begins[digit - 1];
    for (const Key key : keys) other[static_cast<size_t>(begins[(key >> shift) % kDigits]++)] = key;
    keys.swap(other);
  }
}

// The order in which rows are taken: by index, and rows of equal index by position.
class Order {
 public:
  Order(const int32_t* indices, int64_t count, int64_t size) : unique_(count) {
    if (strictly_ascending(indices, count)) return;
    keys_.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) keys_[i] = key_of(indices[i], i);
    if (count < kFew) {
      std::sort(keys_.begin(), keys_.end());
    } else {
      sort_by_digits(keys_, size);
    }
    for (int64_t i = 1; i < count; ++i) unique_ -= index_of(keys_[i - 1]) == index_of(keys_[i]);
  }

  int64_t unique() const { return unique_; }
  bool as_they_stand() const { return keys_.empty(); }

  // Calls body(position) for each row in this order.
  template <typename Body>
  void for_each(Body&& body) const {
    for (const Key key : keys_) body(position_of(key));
  }

 private:
  int64_t unique_;
  std::vector<Key> keys_;  // empty if the rows are already in order
};

template <typename Element, typename Operation>
void pack_dense(const Element* values, const int32_t* indices, int64_t count, const hvds_rows& rows, Element* out) {
  std::fill(out, out + rows.size * rows.width, neutral<Element, Operation>());
  for (int64_t i = 0; i < count; ++i) {
    combine_run<Element, Operation>(out + indices[i] * rows.width, values + i * rows.width, rows.width);
  }
}

template <typename Element, typename Operation>
void pack_sparse(const Element* values, const int32_t* indices, const Order& order, int64_t width, int32_t* out_indices,
                 Element* out) {
  int64_t place = -1;
  order.for_each([&](int64_t row) {
    if (place >= 0 && out_indices[place] == indices[row]) {
      combine_run<Element, Operation>(out + place * width, values + row * width, width);
      return;
    }
    out_indices[++place] = indices[row];
    begin_run<Element, Operation>(out + place * width, values + row * width, width);
  });
}

template <typename Element, typename Operation>
int64_t pack(const Element* values, const int32_t* indices, int64_t count, const hvds_rows& rows, int64_t dense_above,
             int32_t* message) {
  const StandardFloats standard;
  const Order order(indices, count, rows.size);
  const bool dense = order.unique() > dense_above;
  const int64_t written = dense ? rows.size : order.unique();
  write_frame(dense, written, rows, message);
  auto* out = values_in<Element>(message, dense, written);
  if (dense && order.as_they_stand() && count == rows.size) {
    begin_run<Element, Operation>(out, values, count * rows.width);
  } else if (dense) {
    pack_dense<Element, Operation>(values, indices, count, rows, out);
  } else if (order.as_they_stand()) {
    std::copy_n(indices, count, indices_in(message));
    begin_run<Element, Operation>(out, values, count * rows.width);
  } else {
    pack_sparse<Element, Operation>(values, indices, order, rows.width, indices_in(message), out);
  }
  return hvds_stream_words(dense, written, &rows);
}

}  // namespace
}  // namespace hvds

extern "C" int64_t hvds_stream_pack(const void* values, const int32_t* indices, int64_t count, const hvds_rows* rows,
                                    hvds_combine combine, int64_t dense_above, int32_t* message) try {
  return hvds::with_operation(rows->dtype, combine, [&](auto* element, auto operation) {
    using Element = std::remove_pointer_t<decltype(element)>;
    return hvds::pack<Element, decltype(operation)>(static_cast<const Element*>(values), indices, count, *rows,
                                                    dense_above, message);
  });
} catch (const std::bad_alloc&) {
  return -1;
}
