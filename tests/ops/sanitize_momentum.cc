// Runs the kernels of momentum.h on blocks of exactly the right length, under the sanitizers.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "common/cpu_features.h"
#include "momentum/momentum.h"
#include "sanitizing.h"

namespace {

const int64_t kSizes[] = {0, 1, 7, 15, 16, 17, 65, 400003, (1 << 20) + 5};
const hvds_dtype kTypes[] = {HVDS_FLOAT32, HVDS_FLOAT16, HVDS_BFLOAT16};

// Blocks begin at whole cache lines, so that stores may bypass the caches.
struct Free {
  void operator()(char* block) const { ::operator delete[](block, std::align_val_t{64}); }
};
using Block = std::unique_ptr<char[], Free>;

Block block_of(int64_t bytes) { return Block(new (std::align_val_t{64}) char[bytes]); }

float* floats_of(const Block& block) { return reinterpret_cast<float*>(block.get()); }

Block ones(int64_t count, hvds_dtype dtype) {
  const int64_t bytes = dtype == HVDS_FLOAT32 ? 4 : 2;
  const float one = 1.0f;
  const uint16_t half = dtype == HVDS_FLOAT16 ? 0x3c00 : 0x3f80;
  Block block = block_of(count * bytes);
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(block.get() + i * bytes, dtype == HVDS_FLOAT32 ? static_cast<const void*>(&one) : &half, bytes);
  }
  return block;
}

bool all(const float* values, int64_t size, float expected) {
  for (int64_t i = 0; i < size; ++i) {
    if (values[i] != expected) return false;
  }
  return true;
}

void check_momentum(int64_t size, hvds_dtype dtype, const hvds_parallel* parallel) {
  for (int count : {1, 2, 5}) {
    const Block parts = ones(count * size, dtype);
    const Block velocity = ones(size, HVDS_FLOAT32), after = block_of(4 * size), moves = block_of(4 * size);
    const auto advance = [&](float* to, float* moved) {
      return hvds_momentum(parts.get(), dtype, count, size, floats_of(velocity), 0.5f, 2, to, moved, parallel);
    };
    const float expected = 0.5f + 2 * count;
    expect(advance(floats_of(after), nullptr) == 0, "no fault");
    expect(all(floats_of(after), size, expected), "the velocity");
    expect(advance(floats_of(after), floats_of(moves)) == 0, "no fault with Nesterov");
    expect(all(floats_of(moves), size, 0.5f * expected + 2 * count), "Nesterov's step");
    expect(advance(floats_of(velocity), nullptr) == 0, "no fault in place");
    expect(all(floats_of(velocity), size, expected), "the velocity in place");
    if (size == 0) continue;
    std::memset(parts.get() + count * size * (dtype == HVDS_FLOAT32 ? 4 : 2) - 2, 0xff, 2);  // the upper half of a number
    expect(advance(floats_of(after), nullptr) == count, "the last part is to blame");
  }
}

void check_clear(int64_t size, const hvds_parallel* parallel) {
  const Block vector = ones(size, HVDS_FLOAT32), to = block_of(4 * size);
  const std::unique_ptr<int32_t[]> indices(new int32_t[size]);
  for (int64_t i = 0; i < size; ++i) indices[i] = int32_t(size - 1 - i);
  const int64_t half = size / 2;
  expect(hvds_clear(floats_of(vector), size, indices.get(), half, floats_of(to), parallel) == -1, "all inside");
  expect(all(floats_of(to), size - half, 1) && all(floats_of(to) + size - half, half, 0), "half is cleared");
  expect(hvds_clear(floats_of(vector), size, indices.get(), size, floats_of(vector), parallel) == -1, "all, in place");
  expect(all(floats_of(vector), size, 0), "all is cleared");
  if (size == 0) return;
  indices[size - 1] = int32_t(size);
  expect(hvds_clear(floats_of(vector), size, indices.get(), size, floats_of(to), parallel) == size - 1,
         "the misplaced index is found");
}

}  // namespace

int main() {
  for (int isa = 0; isa <= hvds_isa_detected(); ++isa) {
    hvds_set_isa(isa);
    for (const hvds_parallel* parallel : {static_cast<const hvds_parallel*>(nullptr), &kThreads}) {
      for (const int64_t size : kSizes) {
        for (const hvds_dtype dtype : kTypes) check_momentum(size, dtype, parallel);
        check_clear(size, parallel);
      }
    }
  }
  std::printf("checked %d results\n", checked);
  return 0;
}
