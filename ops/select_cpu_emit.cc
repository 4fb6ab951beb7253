// Who wins, and where winners go.
#include <cstring>

#include "select_cpu_call.h"

namespace hvds {
namespace {

constexpr int64_t kRoom = kBatch + kOverhang;

// The winners of one batch, in the first-level cache.
struct Batch {
  alignas(64) int32_t sure_index[kRoom], band_index[kRoom], unsettled_index[kRoom];
  alignas(64) float sure_value[kRoom], band_value[kRoom], unsettled_value[kRoom];

  Emitted empty() {
    return {{sure_index, sure_value, 0}, {band_index, band_value, 0}, {unsettled_index, unsettled_value, 0}};
  }
};

void write(const Call& call, const Candidates& winners, int64_t& position) {
  const int64_t item = call.output.dtype == HVDS_FLOAT32 ? 4 : 2;
  std::memcpy(call.output.indices + position, winners.index, winners.count * sizeof *winners.index);
  call.kernels.narrow[call.output.dtype](winners.value, winners.count,
                                         static_cast<char*>(call.output.values) + position * item);
  position += winners.count;
}

float sent(float value, int wire) {
  if (wire == HVDS_FLOAT32) return value;
  return wire == HVDS_FLOAT16 ? widen(narrow<Half>(value)) : widen(narrow<Bfloat16>(value));
}

void settle(const Call& call, const Candidates& winners) {
  for (int64_t i = 0; i < winners.count; ++i) {
    call.output.residual_out[winners.index[i]] = winners.value[i] - sent(winners.value[i], call.output.dtype);
  }
}

}  // namespace

Thresholds thresholds_of(const Call& call, const Magnitudes& magnitudes) {
  if (call.choice.samplings == 0) return exact_thresholds(magnitudes.edge);
  return replay(magnitudes.mean, 0, magnitudes.highest, magnitudes.edge, call.all_fit(), call.choice.samplings);
}

bool without_answer(const Call& call, const Thresholds& thresholds, const Counts& total) {
  return thresholds.literal && total.sure + total.band == call.input.size;
}

Window window_of(const Call& call, const Thresholds& thresholds, const Counts& total) {
  return make_window(pack_counts(static_cast<uint32_t>(total.sure), static_cast<uint32_t>(total.band)),
                     static_cast<uint32_t>(call.choice.kept), thresholds.literal, call.choice.seed);
}

Winners winners_after(const Counts& before, const Thresholds& thresholds, const Window& window, Key upper) {
  return {thresholds, upper, before.band, window.first, int64_t{window.first} + window.taken};
}

Destination destination_after(const Counts& before, const Window& window) {
  const int64_t taken = std::clamp<int64_t>(before.band - window.first, 0, window.taken);
  return {window.literal ? before.sure : before.sure + taken, int64_t{window.sure} + taken};
}

void emit(const Call& call, const int32_t* index, const float* value, int64_t count, Winners& winners,
          Destination& destination) {
  Batch batch;
  for (int64_t at = 0; at < count; at += kBatch) {
    Emitted emitted = batch.empty();
    call.kernels.emit(index + at, value + at, std::min(kBatch, count - at), winners, emitted);
    write(call, emitted.sure, destination.sure);
    write(call, emitted.band, destination.band);
    settle(call, emitted.unsettled);
  }
}

}  // namespace hvds
