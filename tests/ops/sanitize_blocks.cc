// Runs the kernels of blocks.h on memory of exactly the right length, under the sanitizers.
#include <cmath>
#include <cstdio>
#include <memory>

#include "blocks/blocks.h"
#include "sanitizing.h"

namespace {

using Memory = std::unique_ptr<float[]>;

Memory made(int64_t count) {
  Memory memory(new float[count]);
  for (int64_t i = 0; i < count; ++i) memory[i] = std::sin(static_cast<float>(i)) + 2;
  return memory;
}

// All blocks in turn, until nothing is left.
void check(int64_t size, int64_t pieces, int64_t blocks, const hvds_parallel* parallel) {
  const hvds_deal deal = hvds_deal_of(size, pieces, blocks);
  const Memory total = made(size), residual(new float[size]()), mean(new float[size]), sum(new float[size]);
  const std::unique_ptr<uint16_t[]> narrow(new uint16_t[size]);
  Memory left = made(size);
  for (int64_t turn = 0; turn < deal.cycle; ++turn) {
    const Memory values(new float[deal.pieces * deal.each]);
    expect(hvds_take_block(left.get(), residual.get(), &deal, turn, sum.get(), values.get(), parallel), "all is finite");
    hvds_keep_block(values.get(), values.get(), &deal, turn, sum.get(), parallel);
    hvds_spread_block(values.get(), &deal, turn, 1.0f, mean.get(), HVDS_FLOAT32, parallel);
    hvds_spread_block(values.get(), &deal, turn, 1.0f, narrow.get(), HVDS_FLOAT16, parallel);
    hvds_spread_block(values.get(), &deal, turn, 1.0f, narrow.get(), HVDS_BFLOAT16, parallel);
    bool right = true;
    for (int64_t i = 0; i < size; ++i) right = right && (mean[i] == 0 ? sum[i] == left[i] : sum[i] == 0);
    expect(right, "the block is in the mean, and the rest remains");
    for (int64_t i = 0; i < size; ++i) left[i] = sum[i];
  }
  bool empty = true;
  for (int64_t i = 0; i < size; ++i) empty = empty && left[i] == 0;
  expect(empty, "each element has had its turn");
}

}  // namespace

int main() {
  for (const hvds_parallel* parallel : kWays) {
    for (const int64_t size : {1, 2, 7, 100, 8191, 8192, 8193, 400003}) {
      for (const int64_t pieces : {1, 2, 3, 16}) {
        for (const int64_t blocks : {1, 3, 10}) check(size, pieces, blocks, parallel);
      }
    }
    check(20000, 2, 9000, parallel);
  }
  std::printf("checked %d results\n", checked);
  return 0;
}
