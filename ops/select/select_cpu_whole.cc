// The selection in several passes, for inputs that mislead the sample or make Algorithm 1 draw from most of the vector.
#include "../common/cpu_features.h"
#include "select_cpu_call.h"

namespace hvds {
namespace {

using Histogram = uint32_t[kBins];

// Counts digit `digit` of the keys in one task's share that agree with `place` so far; returns the highest key.
Key count_share(const Call& call, int task, const Digits& digits, int digit, const Place& place, uint32_t* bins) {
  float room[kTile];
  Key highest = 0;
  std::fill_n(bins, kBins, 0);
  for (int64_t tile = call.first_tile(task); tile < call.first_tile(task + 1); ++tile) {
    const float* values = acc_of(call, tile, room);
    for (int64_t i = 0; i < call.length_of(tile); ++i) {
      const Key key = key_of(values[i]);
      highest = std::max(highest, key);
      if (at_place(digits, key, digit, place)) ++bins[bin_of(digits, key, digit)];
    }
  }
  return highest;
}

Place narrow_down(const Digits& digits, int digit, const Place& place, const uint32_t* bins) {
  uint32_t above = 0;
  uint32_t bin = (1u << width_of(digits, digit)) - 1;
  while (above + bins[bin] < place.rank) above += bins[bin--];
  return narrowed(digits, digit, place, bin, above);
}

// Calls body(tile, index, value, count) for the elements of each tile of a task's share that reach `lower`.
template <typename Body>
void for_each_tile(const Call& call, int task, Key lower, Body&& body) {
  float room[kTile];
  int32_t index[kTile + kOverhang];
  float value[kTile + kOverhang];
  const Bounds bounds{lower, kNoKey, kNoKey};
  for (int64_t number = call.first_tile(task); number < call.first_tile(task + 1); ++number) {
    Candidates found{index, value, 0};
    const Tile tile{acc_of(call, number, room), nullptr, nullptr, static_cast<int32_t>(number * kTile),
                    static_cast<int32_t>(call.length_of(number)), hvds_bytes_ahead()};
    call.kernels.scan[HVDS_FLOAT32](tile, bounds, false, found, nullptr);
    body(found);
  }
}

std::vector<Counts> count_all(const Call& call, const Thresholds& thresholds, Counts& total) {
  std::vector<Counts> before(call.tasks);
  call.for_each_task([&](int task) {
    float room[kTile];
    Counts counts;
    for (int64_t tile = call.first_tile(task); tile < call.first_tile(task + 1); ++tile) {
      const Counts of_tile = call.kernels.count(keys_of(acc_of(call, tile, room)), call.length_of(tile), thresholds);
      counts.sure += of_tile.sure;
      counts.band += of_tile.band;
    }
    before[task] = counts;
  });
  total = Counts();
  for (Counts& each : before) {
    const Counts mine = each;
    each = total;
    total.sure += mine.sure;
    total.band += mine.band;
  }
  return before;
}

}  // namespace

const float* acc_of(const Call& call, int64_t tile, float* room) {
  const int64_t first = tile * kTile;
  if (call.output.residual_out != nullptr) return call.output.residual_out + first;
  if (call.input.dtype == HVDS_FLOAT32) return static_cast<const float*>(call.input.parts) + first;
  const void* halves = static_cast<const uint16_t*>(call.input.parts) + first;
  call.kernels.sum_parts[call.input.dtype](halves, 1, 0, call.length_of(tile), room);
  return room;
}

Magnitudes rank_all(const Call& call) {
  const Digits digits = make_digits(0, kHighestKey);
  std::vector<uint32_t>& bins = call.workspace.histograms;
  bins.resize(static_cast<size_t>(call.tasks) * kBins);
  Place place{0, static_cast<uint32_t>(call.rank())};
  std::vector<Key> highest(call.tasks);
  for (int digit = 0; digit < kDigits; ++digit) {
    call.for_each_task([&](int task) {
      highest[task] = count_share(call, task, digits, digit, place, bins.data() + task * kBins);
    });
    for (int task = 1; task < call.tasks; ++task) {
      for (int bin = 0; bin < kBins; ++bin) bins[bin] += bins[task * kBins + bin];
    }
    place = narrow_down(digits, digit, place, bins.data());
  }
  return {digits.base + place.prefix, *std::max_element(highest.begin(), highest.end()), 0};
}

void emit_all(const Call& call, const Magnitudes& magnitudes, Thresholds thresholds) {
  Counts total;
  std::vector<Counts> before = count_all(call, thresholds, total);
  if (without_answer(call, thresholds, total)) {
    thresholds = exact_thresholds(magnitudes.edge);
    before = count_all(call, thresholds, total);
  }
  const Window window = window_of(call, thresholds, total);
  call.for_each_task([&](int task) {
    Winners winners = winners_after(call, before[task], thresholds, window, kNoKey);
    Destination destination = destination_after(before[task], window);
    for_each_tile(call, task, thresholds.band, [&](const Candidates& found) {
      emit(call, found.index, found.value, found.count, winners, destination);
    });
  });
}

}  // namespace hvds
