// Which candidates win, and where winners are written.
#include <cstring>

#include "select_cpu_call.h"

namespace hvds {
namespace {

constexpr int64_t kRoom = 2 * kBatch + kOverhang;
constexpr int64_t kMendsAhead = 24;
constexpr int64_t kWorthStreaming = 1 << 20;

// Whether the winners are written past the caches, which cannot hold that many anyway.
bool streams(const Call& call) {
  return call.choice.kept >= kWorthStreaming && call.output.dtype == HVDS_FLOAT32;
}

// Lists of the results of a batch, in the caches; the lists of elements to be corrected collect those of several
// batches.
struct Lists {
  alignas(64) int32_t index[4][kRoom];
  alignas(64) float value[4][kRoom];

  Candidates empty(int list) { return {index[list], value[list], 0}; }
};

void write(const Call& call, Candidates& winners, int64_t& position) {
  const Output& output = call.output;
  const int64_t item = output.dtype == HVDS_FLOAT32 ? 4 : 2;
  void* values = static_cast<char*>(output.values) + position * item;
  int32_t* indices = output.indices + position;
  const int64_t bytes = winners.count * static_cast<int64_t>(sizeof *indices);
  if (streams(call)) {
    call.kernels.stream_copy(winners.index, bytes, indices);
    call.kernels.stream_copy(winners.value, bytes, values);
  } else {
    std::memcpy(indices, winners.index, bytes);
    call.kernels.narrow[output.dtype](winners.value, winners.count, values);
  }
  position += winners.count;
  winners.count = 0;
}

float sent(float value, int wire) {
  if (wire == HVDS_FLOAT32) return value;
  return wire == HVDS_FLOAT16 ? widen(narrow<Half>(value)) : widen(narrow<Bfloat16>(value));
}

// Corrects what the scan left in residual_out for these elements; with prefetches, as they are far apart.
void mend(const Call& call, Candidates& mistaken, bool won) {
  float* residual_out = call.output.residual_out;
  for (int64_t i = 0; i < mistaken.count; ++i) {
    __builtin_prefetch(residual_out + mistaken.index[std::min(i + kMendsAhead, mistaken.count - 1)], 1);
    const float value = mistaken.value[i];
    residual_out[mistaken.index[i]] = won ? value - sent(value, call.output.dtype) : value;
  }
  mistaken.count = 0;
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

Winners winners_after(const Call& call, const Counts& before, const Thresholds& thresholds, const Window& window,
                      Key settled_from) {
  const bool feedback = call.output.residual_out != nullptr;
  return {thresholds, feedback, settled_from, before.band, window.first, int64_t{window.first} + window.taken};
}

Destination destination_after(const Counts& before, const Window& window) {
  const int64_t taken = std::clamp<int64_t>(before.band - window.first, 0, window.taken);
  return {window.literal ? before.sure : before.sure + taken, int64_t{window.sure} + taken};
}

void emit(const Call& call, const int32_t* index, const float* value, int64_t count, Winners& winners,
          Destination& destination) {
  Lists lists;
  Emitted emitted{lists.empty(0), lists.empty(1), lists.empty(2), lists.empty(3)};
  for (int64_t at = 0; at < count; at += kBatch) {
    call.kernels.emit(index + at, value + at, std::min(kBatch, count - at), winners, emitted);
    write(call, emitted.sure, destination.sure);
    write(call, emitted.band, destination.band);
    if (emitted.unsettled.count > kBatch) mend(call, emitted.unsettled, true);
    if (emitted.revoked.count > kBatch) mend(call, emitted.revoked, false);
  }
  mend(call, emitted.unsettled, true);
  mend(call, emitted.revoked, false);
  if (streams(call)) call.kernels.end_streaming();
}

}  // namespace hvds
