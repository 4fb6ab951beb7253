// Runs the passes of LARS and LAMB on blocks of exactly the right length, under the sanitizers.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "common/cpu_features.h"
#include "lars/blocks.h"
#include "lars/passes.h"
#include "../ops/sanitizing.h"

namespace {

const int64_t kSizes[] = {0, 1, 15, 16, 17, 31, 33, 4095, 4097, 65536, 65537, 200003};
const int64_t kItems[] = {4, 2, 2, 8};

// Ones of each dtype; each use has its own block, so that one byte too many is detected.
std::unique_ptr<char[]> ones(int64_t count, int dtype) {
  const float one = 1;
  const double double_one = 1;
  const uint16_t half = dtype == LARS_FLOAT16 ? 0x3c00 : 0x3f80;
  const void* const kinds[] = {&one, &half, &half, &double_one};
  std::unique_ptr<char[]> block(new char[count * kItems[dtype]]);
  for (int64_t i = 0; i < count; ++i) std::memcpy(block.get() + i * kItems[dtype], kinds[dtype], kItems[dtype]);
  return block;
}

// A list of one tensor of each size, with all that belongs to them.
struct List {
  std::vector<std::unique_ptr<char[]>> memory;
  std::vector<lars_layer> layers;
  std::vector<int64_t> sizes;

  explicit List(int dtype) {
    for (const int64_t size : kSizes) {
      lars_layer layer{};
      layer.size = size;
      layer.dtype = dtype;
      layer.scale = 0.5;
      layer.decay = 1;
      layer.weight = take(size, dtype);
      layer.slots[0] = take(size, dtype);
      layer.slots[1] = take(size, dtype);
      layer.gradient = take(size, dtype);
      layers.push_back(layer);
      sizes.push_back(size);
    }
  }

  void* take(int64_t size, int dtype) {
    memory.push_back(ones(size, dtype));
    return memory.back().get();
  }

  bool all_like(const void* tensor, int64_t number, double value) const {
    const lars_layer& layer = layers[number];
    if (layer.dtype != LARS_FLOAT32) return true;
    for (int64_t i = 0; i < layer.size; ++i) {
      if (static_cast<const float*>(tensor)[i] != static_cast<float>(value)) return false;
    }
    return true;
  }
};

void check(int dtype, const hvds_parallel* parallel) {
  List list(dtype);
  const auto count = static_cast<int64_t>(list.layers.size());
  const int64_t blocks = lars_block_count(list.layers.data(), count);
  const lamb_rule lamb{0.5, 0.5, 0, 1};
  const std::unique_ptr<double[]> partials(new double[2 * blocks]), sums(new double[2 * count]);
  for (int64_t first = 0; first < blocks; first += 3) {
    const int64_t last = first + 3 < blocks ? first + 3 : blocks;
    double* to = partials.get() + 2 * first;
    expect(lars_partials(list.layers.data(), count, first, last, to, parallel) == LARS_OK, "partials");
  }
  expect(lars_layer_sums(list.sizes.data(), count, partials.get(), blocks, 2, sums.get()) == LARS_OK, "sums");
  for (int64_t number = 0; number < 2 * count; ++number) expect(sums[number] == kSizes[number / 2], "a sum of ones");
  expect(lamb_partials(list.layers.data(), count, &lamb, 0, blocks, partials.get(), parallel) == LARS_OK, "partials");
  for (const int32_t nesterov : {0, 1}) {
    const lars_rule rule{0.5, nesterov};
    expect(lars_update(list.layers.data(), count, &rule, parallel) == LARS_OK, "update");
  }
  // v = 0.5 + 0.5 * 2 = 1.5, w = -0.5; then step = 0.25, v = 1, w = -0.5 - 0.75
  for (int64_t number = 0; number < count; ++number) {
    expect(list.all_like(list.layers[number].weight, number, -1.25), "weights after two steps");
    expect(list.all_like(list.layers[number].slots[0], number, 1), "velocities after two steps");
  }
  expect(lamb_update(list.layers.data(), count, &lamb, parallel) == LARS_OK, "update");
}

}  // namespace

int main() {
  for (int isa = 0; isa <= hvds_isa_detected(); ++isa) {
    hvds_set_isa(isa);
    for (const hvds_parallel* parallel : {static_cast<const hvds_parallel*>(nullptr), &kThreads}) {
      for (int dtype = 0; dtype < 4; ++dtype) check(dtype, parallel);
    }
  }
  expect(lars_partials(nullptr, 0, 0, 0, nullptr, nullptr) == LARS_OK, "an empty list");
  std::printf("checked %d results\n", checked);
  return 0;
}
