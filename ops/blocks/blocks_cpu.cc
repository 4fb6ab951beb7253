#include "blocks.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "../common/elements.h"
#include "../common/float_mode.h"

namespace hvds {
namespace {

constexpr int64_t kWindow = 8192;        // elements processed at a time, in the first-level cache
constexpr int64_t kWorthATask = 131072;  // elements for which waking a thread pays off

// Some consecutive elements of one piece, whole rounds of all blocks.
struct Window {
  int64_t begin, end;   // in the vector
  int64_t value;        // where the block's values begin
  int64_t count;        // of the block's values, with padding
  int64_t first;        // the block's first element in the vector, maybe behind the end

  // The block's values that are elements of the vector.
  int64_t present(int64_t cycle) const { return first < end ? (end - first + cycle - 1) / cycle : 0; }
};

// Calls body(task, window) for windows that together hold the vector, in parallel, with IEEE arithmetic.
template <typename Body>
void for_windows(const hvds_deal& deal, int64_t turn, const hvds_parallel* parallel, int tasks, const Body& body) {
  const int64_t rounds = std::max<int64_t>(1, kWindow / deal.cycle);
  const int64_t in_piece = (deal.each + rounds - 1) / rounds;
  const int64_t all = deal.pieces * in_piece;
  parallel_for(parallel, tasks, [&](int task) {
    const StandardFloats standard;
    for (int64_t number = all * task / tasks; number < all * (task + 1) / tasks; ++number) {
      const int64_t piece = number / in_piece, round = number % in_piece * rounds;
      const int64_t start = std::min(piece * deal.longest, deal.size);
      const int64_t stop = std::min(start + deal.longest, deal.size);
      const int64_t count = std::min(rounds, deal.each - round);
      const int64_t begin = std::min(start + round * deal.cycle, stop);
      const int64_t end = std::min(begin + count * deal.cycle, stop);
      body(task, Window{begin, end, piece * deal.each + round, count, begin + turn});
    }
  });
}

int task_count(const hvds_deal& deal, const hvds_parallel* parallel) {
  return static_cast<int>(std::clamp<int64_t>(deal.size / kWorthATask, 1, thread_count(parallel)));
}

// The sum carries into the sign bit exactly if all bits of the exponent are set.
uint32_t not_finite(float x) { return (bits_of(x) & 0x7fffffffu) + 0x00800000u; }

bool add(const float* total, const float* residual, int64_t count, float* sum) {
  uint32_t signs = 0;
  for (int64_t i = 0; i < count; ++i) {
    sum[i] = total[i] + residual[i];
    signs |= not_finite(sum[i]);
  }
  return (signs & 0x80000000u) == 0;
}

bool copy(const float* total, int64_t count, float* sum) {
  uint32_t signs = 0;
  for (int64_t i = 0; i < count; ++i) signs |= not_finite(total[i]);
  std::memmove(sum, total, static_cast<size_t>(count) * sizeof *sum);
  return (signs & 0x80000000u) == 0;
}

template <typename Element>
void spread(const float* values, const hvds_deal& deal, int64_t turn, float divisor, Element* mean,
            const hvds_parallel* parallel) {
  for_windows(deal, turn, parallel, task_count(deal, parallel), [&](int, const Window& window) {
    std::memset(static_cast<void*>(mean + window.begin), 0, (window.end - window.begin) * sizeof *mean);
    Element* to = mean + window.first;
    const int64_t present = window.present(deal.cycle);
    for (int64_t i = 0; i < present; ++i) to[i * deal.cycle] = narrow<Element>(values[window.value + i] / divisor);
  });
}

}  // namespace
}  // namespace hvds

extern "C" hvds_deal hvds_deal_of(int64_t size, int64_t pieces, int64_t blocks) {
  const int64_t longest = (size - 1) / pieces + 1;
  const int64_t each = (longest - 1) / blocks + 1;
  return {size, pieces, longest, each, (longest - 1) / each + 1};
}

extern "C" bool hvds_take_block(const float* total, const float* residual, const hvds_deal* deal, int64_t turn,
                                float* sum, float* values, const hvds_parallel* parallel) {
  const int tasks = hvds::task_count(*deal, parallel);
  std::vector<char> finite(tasks, 1);
  hvds::for_windows(*deal, turn, parallel, tasks, [&](int task, const hvds::Window& window) {
    const int64_t begin = window.begin, count = window.end - window.begin;
    finite[task] &= residual == nullptr ? hvds::copy(total + begin, count, sum + begin)
                                        : hvds::add(total + begin, residual + begin, count, sum + begin);
    const float* from = sum + window.first;
    const int64_t present = window.present(deal->cycle);
    for (int64_t i = 0; i < present; ++i) values[window.value + i] = from[i * deal->cycle];
    std::fill_n(values + window.value + present, window.count - present, 0.0f);
  });
  const bool all = std::all_of(finite.begin(), finite.end(), [](char each) { return each != 0; });
  if (!all) std::fill_n(values, deal->pieces * deal->each, 0.0f);
  return all;
}

extern "C" void hvds_keep_block(const float* values, const float* decoded, const hvds_deal* deal, int64_t turn,
                                float* kept, const hvds_parallel* parallel) {
  hvds::for_windows(*deal, turn, parallel, hvds::task_count(*deal, parallel), [&](int, const hvds::Window& window) {
    float* to = kept + window.first;
    const int64_t present = window.present(deal->cycle);
    for (int64_t i = 0; i < present; ++i) to[i * deal->cycle] = values[window.value + i] - decoded[window.value + i];
  });
}

extern "C" void hvds_spread_block(const float* values, const hvds_deal* deal, int64_t turn, float divisor, void* mean,
                                  hvds_dtype dtype, const hvds_parallel* parallel) {
  if (dtype == HVDS_FLOAT16) return hvds::spread(values, *deal, turn, divisor, static_cast<hvds::Half*>(mean), parallel);
  if (dtype == HVDS_BFLOAT16) {
    return hvds::spread(values, *deal, turn, divisor, static_cast<hvds::Bfloat16*>(mean), parallel);
  }
  hvds::spread(values, *deal, turn, divisor, static_cast<float*>(mean), parallel);
}
