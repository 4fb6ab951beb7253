// Runs the loops of pipeline/rows.h on blocks of exactly the right length, under the sanitizers.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "common/cpu_features.h"
#include "pipeline/rows.h"
#include "sanitizing.h"

namespace {

// Each use has its own block, so that one byte too many is detected.
template <typename Element>
std::unique_ptr<Element[]> block(int64_t count) {
  return std::unique_ptr<Element[]>(new Element[static_cast<size_t>(count)]);
}

// The bits of an element; with `ties`, many have the same magnitude.
template <typename Element>
Element bits_at(int64_t i, bool ties) {
  const uint32_t mixed = static_cast<uint32_t>(i) * 2654435761u;
  return static_cast<Element>(ties ? mixed >> 29 : mixed >> (32 - 8 * sizeof(Element)));
}

template <typename Element, typename Position>
void check(const hvds_rows& shape, bool ties, const hvds_parallel* parallel) {
  const int64_t size = shape.rows * shape.width, count = shape.rows * shape.kept;
  const auto x = block<Element>(size), y = block<Element>(size), again = block<Element>(size);
  const auto values = block<Element>(count), gathered = block<Element>(count);
  const auto positions = block<Position>(count), same = block<Position>(count);
  for (int64_t i = 0; i < size; ++i) x[i] = bits_at<Element>(i, ties);
  expect(hvds_largest_rows(&shape, x.get(), y.get(), nullptr, positions.get(), parallel) == 0, "there is memory");
  expect(hvds_largest_rows(&shape, x.get(), nullptr, values.get(), same.get(), parallel) == 0, "there is memory");
  expect(count == 0 || std::memcmp(positions.get(), same.get(), count * sizeof(Position)) == 0, "the same positions");
  expect(hvds_place_rows(&shape, values.get(), positions.get(), again.get(), parallel) == -1, "positions ascend");
  expect(size == 0 || std::memcmp(y.get(), again.get(), size * sizeof(Element)) == 0, "values are where they belong");
  expect(hvds_mask_rows(&shape, x.get(), positions.get(), again.get(), parallel) == -1, "positions ascend");
  expect(size == 0 || std::memcmp(y.get(), again.get(), size * sizeof(Element)) == 0, "the mask is the same");
  expect(hvds_gather_rows(&shape, x.get(), positions.get(), gathered.get(), parallel) == -1, "positions ascend");
  expect(count == 0 || std::memcmp(values.get(), gathered.get(), count * sizeof(Element)) == 0, "the same values");
  if (count == 0 || shape.width > 65535) return;
  positions[count - 1] = static_cast<Position>(shape.width);
  expect(hvds_place_rows(&shape, values.get(), positions.get(), again.get(), parallel) == shape.rows - 1, "outside");
  expect(hvds_gather_rows(&shape, x.get(), positions.get(), gathered.get(), parallel) == shape.rows - 1, "outside");
  positions[0] = std::is_signed_v<Position> ? static_cast<Position>(-1) : static_cast<Position>(shape.width);
  expect(hvds_mask_rows(&shape, x.get(), positions.get(), again.get(), parallel) == 0, "the first row is told");
}

void check_types(int64_t rows, int64_t width, int64_t kept, bool ties) {
  for (const hvds_parallel* parallel : kWays) {
    check<uint32_t, int32_t>({HVDS_FLOAT32, rows, width, kept, 0}, ties, parallel);
    check<uint16_t, int32_t>({HVDS_BFLOAT16, rows, width, kept, 0}, ties, parallel);
    if (width > 65536) continue;
    check<uint32_t, uint16_t>({HVDS_FLOAT32, rows, width, kept, 1}, ties, parallel);
    check<uint16_t, uint16_t>({HVDS_FLOAT16, rows, width, kept, 1}, ties, parallel);
  }
}

}  // namespace

int main() {
  for (int level = HVDS_SSE2; level <= hvds_isa_detected(); ++level) {
    hvds_set_isa(level);
    for (const int64_t width : {0, 1, 15, 16, 17, 255, 256, 1031}) {
      for (const int64_t kept : {int64_t{0}, std::min<int64_t>(1, width), width / 20, width / 3, width}) {
        for (const bool ties : {false, true}) check_types(3, width, kept, ties);
      }
    }
    check_types(1200, 1024, 50, false);  // several tasks, and stores that bypass the caches
    check_types(2, 70000, 700, false);
  }
  std::printf("checked %d results\n", checked);
  return 0;
}
