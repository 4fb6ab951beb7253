// Runs the kernels of sparse.h on blocks of exactly the right length, under the sanitizers.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "common/cpu_features.h"
#include "exchange/sparse.h"
#include "sanitizing.h"

namespace {

const int64_t kSizes[] = {0, 1, 7, 8, 9, 8191, 8192, 8193, 20001, 400003};
const hvds_dtype kTypes[] = {HVDS_FLOAT32, HVDS_FLOAT16, HVDS_BFLOAT16};

int64_t item_size(hvds_dtype dtype) { return dtype == HVDS_FLOAT32 ? 4 : 2; }

// Small powers of two in each dtype; each use has its own block, so that one byte too many is detected.
std::unique_ptr<char[]> ones(int64_t count, hvds_dtype dtype) {
  std::unique_ptr<char[]> block(new char[count * item_size(dtype)]);
  const float one = 1.0f;
  const uint16_t half = dtype == HVDS_FLOAT16 ? 0x3c00 : 0x3f80;
  for (int64_t i = 0; i < count; ++i) {
    if (dtype == HVDS_FLOAT32) std::memcpy(block.get() + 4 * i, &one, 4);
    if (dtype != HVDS_FLOAT32) std::memcpy(block.get() + 2 * i, &half, 2);
  }
  return block;
}

void check_sum_parts(int64_t size, hvds_dtype dtype, const hvds_parallel* parallel) {
  for (int count = 1; count <= 6; ++count) {
    const std::unique_ptr<char[]> parts = ones(count * size, dtype);
    const std::unique_ptr<float[]> sum(new float[size]);
    expect(hvds_sum_parts(parts.get(), dtype, count, size, sum.get(), parallel) == 0, "no fault");
    for (int64_t i = 0; i < size; ++i) expect(sum[i] == float(count), "a sum of ones");
  }
}

void check_mean(int64_t size, hvds_dtype dtype, const hvds_parallel* parallel) {
  const std::unique_ptr<char[]> total = ones(size, dtype);
  const std::unique_ptr<float[]> mean(new float[size]);
  expect(hvds_mean(total.get(), dtype, 2, mean.get(), HVDS_FLOAT32, size, parallel), "finite");
  for (int64_t i = 0; i < size; ++i) expect(mean[i] == 0.5f, "half of one");
  expect(hvds_mean(total.get(), dtype, 1, total.get(), dtype, size, parallel), "finite in place");
  if (size == 0) return;
  const std::unique_ptr<char[]> marked(new char[size * item_size(dtype)]);
  hvds_mark_nonfinite(total.get(), dtype, size, marked.get());
  expect(!hvds_mean(marked.get(), dtype, 2, mean.get(), HVDS_FLOAT32, size, parallel), "nonfinite");
}

void check_messages(int64_t size, hvds_dtype dtype) {
  const int32_t counts[] = {int32_t(size), 0, int32_t(size)};
  const int64_t words = hvds_message_words(size, dtype);
  const std::unique_ptr<char[]> values = ones(size, dtype);
  const std::unique_ptr<int32_t[]> indices(new int32_t[size]), messages(new int32_t[2 * words]);
  for (int64_t i = 0; i < size; ++i) indices[i] = int32_t(i);
  hvds_pack(values.get(), indices.get(), size, dtype, messages.get());
  hvds_pack(values.get(), indices.get(), size, dtype, messages.get() + words);
  const std::unique_ptr<char[]> unpacked(new char[2 * size * item_size(dtype)]);
  const std::unique_ptr<int32_t[]> where(new int32_t[2 * size]);
  hvds_unpack(messages.get(), counts, 3, dtype, unpacked.get(), where.get());
  const int64_t bytes = size * item_size(dtype);
  expect(size == 0 || std::memcmp(unpacked.get() + bytes, values.get(), bytes) == 0, "values as they were");
  expect(size == 0 || std::memcmp(where.get(), indices.get(), 4 * size) == 0, "indices as they were");
}

void check_sparse_sum(int64_t size, hvds_dtype dtype, bool ascending, const hvds_parallel* parallel) {
  std::mt19937 random(1);
  const int64_t count = size == 0 ? 0 : size / 3 + 2;
  const std::unique_ptr<int32_t[]> indices(new int32_t[count]);
  for (int64_t i = 0; i < count; ++i) indices[i] = int32_t((ascending ? i : random()) % size);
  if (count > 0) indices[0] = int32_t(size - 1);
  const std::unique_ptr<char[]> values = ones(count, dtype);
  const std::unique_ptr<char[]> dense(new char[size * item_size(dtype)]);
  const int64_t misplaced =
      hvds_sparse_sum(values.get(), dtype, indices.get(), count, 0, 2, dense.get(), dtype, size, parallel);
  expect(misplaced == -1, "all indices inside");
  if (count == 0) return;
  indices[count - 1] = int32_t(size);
  expect(
      hvds_sparse_sum(values.get(), dtype, indices.get(), count, 0, 2, dense.get(), dtype, size, parallel) == count - 1,
      "the misplaced index is found");
}

}  // namespace

int main() {
  for (int isa = 0; isa <= hvds_isa_detected(); ++isa) {
    hvds_set_isa(isa);
    for (const hvds_parallel* parallel : {static_cast<const hvds_parallel*>(nullptr), &kThreads}) {
      for (const int64_t size : kSizes) {
        for (const hvds_dtype dtype : kTypes) {
          check_sum_parts(size, dtype, parallel);
          check_mean(size, dtype, parallel);
          check_messages(size, dtype);
          check_sparse_sum(size, dtype, true, parallel);
          check_sparse_sum(size, dtype, false, parallel);
        }
      }
    }
  }
  std::printf("checked %d results\n", checked);
  return 0;
}
