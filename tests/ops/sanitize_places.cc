// Runs the loops of servers/places.h on blocks of exactly the right length, under the sanitizers.
#include <cstdio>
#include <memory>
#include <numeric>
#include <vector>

#include "sanitizing.h"
#include "servers/places.h"

namespace {

using Block = std::unique_ptr<float[]>;

// Pieces, some of them empty, with all places taken alternately from both ends.
void check(const std::vector<int64_t>& sizes) {
  std::vector<Block> blocks;
  std::vector<float*> memory;
  std::vector<int64_t> ends;
  for (const int64_t size : sizes) {
    blocks.emplace_back(new float[size]());
    memory.push_back(blocks.back().get());
    ends.push_back((ends.empty() ? 0 : ends.back()) + size);
  }
  const int64_t size = ends.back();
  const std::unique_ptr<int32_t[]> places(new int32_t[size]);
  const Block values(new float[size]);
  for (int64_t i = 0; i < size; ++i) {
    places[i] = static_cast<int32_t>(i % 2 == 0 ? i / 2 : size - 1 - i / 2);
    values[i] = static_cast<float>(places[i]);
  }
  expect(hvds_places_fit(places.get(), size, size) != 0, "all places fit");
  expect(size == 0 || hvds_places_fit(places.get(), size, size - 1) == 0, "the last one does not fit into less");
  const hvds_pieces pieces{memory.data(), ends.data(), static_cast<int64_t>(ends.size())};
  hvds_put_places(&pieces, values.get(), places.get(), size);
  int64_t at = 0;
  bool right = true;
  for (size_t piece = 0; piece < sizes.size(); ++piece) {
    for (int64_t i = 0; i < sizes[piece]; ++i) right = right && memory[piece][i] == static_cast<float>(at++);
  }
  expect(right, "each place has its own value");
  const Block sum(new float[size]()), negated(new float[size]()), sent(new float[size]());
  hvds_add_places(sum.get(), values.get(), places.get(), size);
  hvds_send_places(sum.get(), negated.get(), places.get(), sent.get(), size);
  for (int64_t i = 0; i < size; ++i) right = right && negated[places[i]] == -values[i] && sent[i] == values[i];
  expect(right, "what is sent is what was added, and the copy is minus that");
}

}  // namespace

int main() {
  for (const int64_t size : {0, 1, 23, 24, 25, 1000}) check({size});
  check({0, 5, 0, 70, 1, 0});
  check({30, 30, 30});
  std::printf("checked %d results\n", checked);
  return 0;
}
