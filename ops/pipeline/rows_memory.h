// What the kernels of rows share: how work is divided, and a row's positions and elements in their output form.
#ifndef HVD_SPARSE_OPS_ROWS_MEMORY_H_
#define HVD_SPARSE_OPS_ROWS_MEMORY_H_

#include <algorithm>
#include <cstring>
#include <memory>

#include "rows.h"
#include "rows_kernels.h"

namespace hvds {

constexpr int64_t kWorthATask = 131072;           // elements for which waking a thread pays off
constexpr int64_t kWorthStreamingRows = 4 << 20;  // bytes of a result that does not fit the caches anyway

inline int64_t item_bytes(const hvds_rows& shape) { return shape.dtype == HVDS_FLOAT32 ? 4 : 2; }

inline int row_tasks(const hvds_rows& shape, const hvds_parallel* parallel) {
  const int64_t most = std::max<int64_t>(1, std::min<int64_t>(shape.rows, thread_count(parallel)));
  return static_cast<int>(std::clamp<int64_t>(shape.rows * shape.width / kWorthATask, 1, most));
}

// Whether a result [rows, width] is written past the caches: requires that each row begins at a cache line.
inline bool streams(const hvds_rows& shape, const void* to) {
  const int64_t row = shape.width * item_bytes(shape);
  return row * shape.rows >= kWorthStreamingRows && (row | reinterpret_cast<uintptr_t>(to)) % 64 == 0;
}

// An uninitialized array with room for kRowOverhang more elements, aligned to a cache line.
template <typename Element>
class RowMemory {
 public:
  explicit RowMemory(int64_t count)
      : memory_(static_cast<Element*>(::operator new((count + kRowOverhang) * sizeof(Element), kLine))) {}

  Element* get() const { return memory_.get(); }

 private:
  static constexpr std::align_val_t kLine{64};

  struct Freed {
    void operator()(Element* memory) const { ::operator delete(memory, kLine); }
  };

  std::unique_ptr<Element, Freed> memory_;
};

// Writes the positions of row `number`.
inline void write_positions(const hvds_rows& shape, const int32_t* positions, int64_t number, char* to) {
  if (shape.narrow != 0) {
    auto* const out = reinterpret_cast<uint16_t*>(to) + number * shape.kept;
    for (int64_t i = 0; i < shape.kept; ++i) out[i] = static_cast<uint16_t>(positions[i]);
  } else {
    std::memcpy(reinterpret_cast<int32_t*>(to) + number * shape.kept, positions, shape.kept * sizeof *positions);
  }
}

// Writes the kept elements of a row.
inline void write_bits(const hvds_rows& shape, const uint32_t* bits, char* to) {
  if (shape.dtype == HVDS_FLOAT32) {
    std::memcpy(to, bits, shape.kept * sizeof *bits);
  } else {
    auto* const out = reinterpret_cast<uint16_t*>(to);
    for (int64_t i = 0; i < shape.kept; ++i) out[i] = static_cast<uint16_t>(bits[i]);
  }
}

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_ROWS_MEMORY_H_
