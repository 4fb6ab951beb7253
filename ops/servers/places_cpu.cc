#include "places.h"

#include <algorithm>

#include "../common/float_mode.h"

namespace hvds {
namespace {

constexpr int64_t kAhead = 24;  // prefetch distance, in places

// Calls function(i) for each i below count, after prefetching with ask(i + kAhead).
template <typename Ask, typename Function>
void each_place(int64_t count, const Ask& ask, const Function& function) {
  const int64_t asked = std::max<int64_t>(0, count - kAhead);
  for (int64_t i = 0; i < asked; ++i) {
    ask(i + kAhead);
    function(i);
  }
  for (int64_t i = asked; i < count; ++i) function(i);
}

// Puts values at places in a piece that holds the elements from `begin` on.
void put_in(float* piece, int64_t begin, const float* values, const int32_t* places, int64_t count) {
  each_place(
      count, [&](int64_t i) { __builtin_prefetch(piece + (places[i] - begin), 1); },
      [&](int64_t i) { piece[places[i] - begin] = values[i]; });
}

}  // namespace
}  // namespace hvds

extern "C" int32_t hvds_places_fit(const int32_t* places, int64_t count, int64_t size) {
  uint32_t highest = 0;  // of places as unsigned numbers, where negative ones come last
  for (int64_t i = 0; i < count; ++i) highest = std::max(highest, static_cast<uint32_t>(places[i]));
  return count == 0 || highest < static_cast<uint64_t>(size);
}

extern "C" void hvds_put_places(const hvds_pieces* vector, const float* values, const int32_t* places, int64_t count) {
  const int64_t* const last = vector->ends + vector->count;
  for (int64_t from = 0, to = 0; from < count; from = to) {  // runs of places within one piece
    const int64_t* const found = std::upper_bound(vector->ends, last, static_cast<int64_t>(places[from]));
    const int64_t begin = found == vector->ends ? 0 : found[-1];
    while (to < count && begin <= places[to] && places[to] < *found) ++to;
    hvds::put_in(vector->memory[found - vector->ends], begin, values + from, places + from, to - from);
  }
}

extern "C" void hvds_add_places(float* vector, const float* values, const int32_t* places, int64_t count) {
  const hvds::StandardFloats standard;
  hvds::each_place(
      count, [&](int64_t i) { __builtin_prefetch(vector + places[i], 1); },
      [&](int64_t i) { vector[places[i]] += values[i]; });
}

extern "C" void hvds_send_places(const float* parameters, float* negated, const int32_t* places, float* values,
                          int64_t count) {
  const auto ask = [&](int64_t i) {
    __builtin_prefetch(parameters + places[i]);
    __builtin_prefetch(negated + places[i], 1);
  };
  hvds::each_place(count, ask, [&](int64_t i) {
    values[i] = parameters[places[i]];
    negated[places[i]] = -values[i];
  });
}
