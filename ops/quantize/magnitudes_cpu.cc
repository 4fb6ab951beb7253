#include "magnitudes.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "../common/elements.h"
#include "../common/float_mode.h"

namespace hvds {
namespace {

// Finds the columns of elements, fastest for ascending indices: the matrix found last is tried first.
class Places {
 public:
  explicit Places(const hvds_matrices& matrices) : matrices_(matrices) {}

  // The number of an element's column among all columns, or -1 if the element is in no matrix.
  int64_t column_of(int64_t index) {
    if (index < begin() || index >= end()) {
      if (!find(index)) return -1;
    }
    return first_ + (matrices_.starts[at_] + index - begin()) % matrices_.columns[at_];
  }

 private:
  int64_t begin() const { return at_ == 0 ? 0 : matrices_.ends[at_ - 1]; }
  int64_t end() const { return at_ < matrices_.count ? matrices_.ends[at_] : 0; }

  bool find(int64_t index) {
    if (index < begin()) at_ = first_ = 0;
    if (index < 0) return false;
    for (; at_ < matrices_.count && index >= matrices_.ends[at_]; ++at_) first_ += matrices_.columns[at_];
    return at_ < matrices_.count;
  }

  const hvds_matrices& matrices_;
  int64_t at_ = 0;
  int64_t first_ = 0;  // columns of the preceding matrices
};

int64_t first_not_finite(const float* values, int64_t count) {
  const float* found = std::find_if_not(values, values + count, [](float value) { return std::isfinite(value); });
  return found == values + count ? -1 : found - values;
}

int64_t column(const int32_t* columns, int64_t i) { return columns == nullptr ? 0 : columns[i]; }

int negative(float value) { return value < 0; }

// Without a branch, as signs are unpredictable.
float with_sign(float magnitude, uint32_t sign) { return float_of(bits_of(magnitude) | sign << 31); }

template <int kBits, typename CodeOf>
void pack(int64_t count, uint8_t* codes, CodeOf&& code_of) {
  constexpr int64_t kInByte = 8 / kBits;
  for (int64_t first = 0; first < count; first += kInByte) {
    const int64_t last = std::min(first + kInByte, count);
    int byte = 0;
    for (int64_t i = first; i < last; ++i) byte |= code_of(i) << (i - first) * kBits;
    *codes++ = static_cast<uint8_t>(byte);
  }
}

void find_means(const float* values, const int32_t* columns, int64_t count, int64_t scale_count, float* scales,
                double* scratch) {
  double* sums = scratch;
  double* counts = scratch + scale_count;
  std::fill_n(scratch, 2 * scale_count, 0.0);
  for (int64_t i = 0; i < count; ++i) {
    sums[column(columns, i)] += std::fabs(values[i]);
    counts[column(columns, i)] += 1;
  }
  for (int64_t j = 0; j < scale_count; ++j) scales[j] = counts[j] == 0 ? 0 : static_cast<float>(sums[j] / counts[j]);
}

void find_least(const float* values, const int32_t* columns, int64_t count, int64_t scale_count, float* scales) {
  constexpr float kNone = std::numeric_limits<float>::infinity();
  std::fill_n(scales, scale_count, kNone);
  for (int64_t i = 0; i < count; ++i) {
    float& least = scales[column(columns, i)];
    if (values[i] != 0) least = std::min(least, std::fabs(values[i]));
  }
  std::replace(scales, scales + scale_count, kNone, 0.0f);
}

}  // namespace
}  // namespace hvds

extern "C" int64_t hvds_columns(const hvds_matrices* matrices) {
  int64_t total = 0;
  for (int64_t i = 0; i < matrices->count; ++i) total += matrices->columns[i];
  return total;
}

extern "C" int64_t hvds_number_columns(const int32_t* indices, int64_t count, const hvds_matrices* matrices,
                                       int32_t* numbers, int32_t* scratch) {
  const int64_t total = hvds_columns(matrices);
  std::fill_n(scratch, total, 0);
  hvds::Places places(*matrices);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t column = places.column_of(indices[i]);
    if (column < 0) return -1 - i;
    numbers[i] = static_cast<int32_t>(column);
    scratch[column] = 1;
  }
  int32_t used = 0;
  for (int64_t column = 0; column < total; ++column) {
    const int32_t here = scratch[column];
    scratch[column] = used;
    used += here;
  }
  for (int64_t i = 0; i < count; ++i) numbers[i] = scratch[numbers[i]];
  return used;
}

extern "C" int64_t hvds_one_bit(const float* values, const int32_t* columns, int64_t count, hvds_magnitude magnitude,
                                int64_t scale_count, uint8_t* codes, float* scales, double* scratch) {
  const hvds::StandardFloats standard;
  const int64_t faulty = hvds::first_not_finite(values, count);
  if (faulty >= 0) return faulty;
  if (magnitude == HVDS_MAGNITUDE_MEAN) {
    hvds::find_means(values, columns, count, scale_count, scales, scratch);
  } else {
    hvds::find_least(values, columns, count, scale_count, scales);
  }
  hvds::pack<1>(count, codes, [values](int64_t i) { return hvds::negative(values[i]); });
  return -1;
}

extern "C" void hvds_from_one_bit(const uint8_t* codes, const float* scales, const int32_t* columns, int64_t count,
                                  float* values) {
  for (int64_t i = 0; i < count; ++i) {
    values[i] = hvds::with_sign(scales[hvds::column(columns, i)], codes[i / 8] >> i % 8 & 1);
  }
}
