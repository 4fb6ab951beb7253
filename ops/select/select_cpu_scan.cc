// The selection in one pass over memory: a sample bounds the magnitude sought from below, a scan collects the elements
// that reach that bound, and the rest is decided among these candidates.
#include "../common/cpu_features.h"
#include "select_cpu_call.h"

namespace hvds {
namespace {

constexpr int kPatience = 3;        // times that a task sorts out candidates; data that need more are ascending
constexpr int64_t kWorthStreaming = 1 << 20;
constexpr double kMuchToCollect = 0.05;  // share of candidates above which to prefetch far ahead on all processors
constexpr int32_t kFarAhead = 2048;
constexpr int64_t kPending = 2048;  // candidates that are split at a time, in the first-level cache

// Parameters of a scan.
struct Manner {
  Bounds bounds;     // as sampled
  int64_t capacity;  // candidates per task
  bool dense;
  int32_t ahead;  // as in Tile
  Writing writing;
};

// Whether residual_out is written past the caches: a large one does not fit them anyway, and is not read before.
bool streams(const Call& call) {
  const float* to = call.output.residual_out;
  return to != nullptr && to != call.input.residual && call.input.size >= kWorthStreaming &&
         reinterpret_cast<uintptr_t>(to) % 64 == 0;
}

int64_t share_of(const Call& call, int task) {
  return (call.first_tile(task + 1) - call.first_tile(task)) * kTile;
}

Finding empty_finding(const Call& call, int task, const Manner& manner) {
  TaskMemory& memory = call.workspace.memory[task];
  const int64_t room = std::min(manner.capacity + kTile, share_of(call, task)) + kOverhang;
  Finding finding;
  finding.candidates = {memory.index.reserve(room), memory.value.reserve(room), 0};
  finding.inside = memory.keys.reserve(room);
  finding.bounds = manner.bounds;
  return finding;
}

// Restores acc where the scan wrote only the residual of an element taken for a winner, and makes it write acc from now
// on.
void restore(const Call& call, Finding& finding) {
  if (call.output.residual_out == nullptr || finding.bounds.likely == kNoKey) return;
  for (int64_t i = 0; i < finding.candidates.count; ++i) {
    const float value = finding.candidates.value[i];
    if (key_of(value) >= finding.bounds.likely) call.output.residual_out[finding.candidates.index[i]] = value;
  }
  finding.bounds.likely = kNoKey;
}

// Of too many candidates only the best can win, and of later ones only those that exceed these: ties go to the first.
void sort_out(const Call& call, Finding& finding) {
  Candidates& candidates = finding.candidates;
  const int64_t rank = call.rank();
  const Key edge = ranked_key(call.kernels, keys_of(candidates.value), candidates.count, rank, finding.inside);
  if (edge >= finding.bounds.likely) restore(call, finding);
  const Counts counts = call.kernels.count(keys_of(candidates.value), candidates.count, exact_thresholds(edge));
  call.kernels.compact(candidates, edge, rank - counts.sure);
  finding.bounds.lower = edge + 1;
  finding.split = Split();
  finding.done = 0;
}

// Splits the candidates found since the last split.
void split(const Call& call, const Manner& manner, Finding& finding) {
  const Candidates& candidates = finding.candidates;
  call.kernels.split(keys_of(candidates.value) + finding.done, candidates.count - finding.done, 0, manner.bounds.upper,
                     finding.inside, finding.split);
  finding.done = candidates.count;
}

void give_up(const Call& call, Finding& finding) {
  restore(call, finding);
  finding.candidates.count = 0;
  finding.bounds.lower = kNoKey;
  finding.given_up = true;
}

// Scans one tile; `room` is for the sum of several parts.
void scan_tile(const Call& call, int64_t number, const Manner& manner, Finding& finding, float* room) {
  const Input& input = call.input;
  const int64_t first = number * kTile;
  float* sum = call.choice.samplings > 0 ? call.workspace.block_sums.data() + number : nullptr;
  const int64_t item = input.dtype == HVDS_FLOAT32 ? 4 : 2;
  const void* source = static_cast<const char*>(input.parts) + first * item;
  const auto length = static_cast<int32_t>(call.length_of(number));
  Tile tile{source, nullptr, nullptr, static_cast<int32_t>(first), length, manner.ahead};
  if (call.output.residual_out == nullptr) {
    call.kernels.scan[input.dtype](tile, finding.bounds, manner.dense, finding.candidates, sum);
    return;
  }
  tile.residual = input.residual == nullptr ? nullptr : input.residual + first;
  tile.residual_out = call.output.residual_out + first;
  int dtype = input.dtype;
  if (input.count > 1) {
    call.kernels.sum_parts[dtype](source, input.count, input.stride, tile.length, room);
    tile.source = room;
    dtype = HVDS_FLOAT32;
  }
  call.kernels.feed_back[dtype](tile, manner.writing, finding.bounds, manner.dense, finding.candidates, sum);
}

void scan_share(const Call& call, int task, const Manner& manner, Finding& finding) {
  alignas(64) float room[kTile];
  for (int64_t tile = call.first_tile(task); tile < call.first_tile(task + 1); ++tile) {
    scan_tile(call, tile, manner, finding, room);
    if (finding.candidates.count > manner.capacity) {
      if (finding.sorted_out++ < kPatience) sort_out(call, finding);
      else give_up(call, finding);
    } else if (finding.candidates.count - finding.done >= kPending) {
      split(call, manner, finding);
    }
  }
  if (manner.writing.stream) call.kernels.end_streaming();
  if (!finding.given_up) split(call, manner, finding);
}

// The keys of all tasks in contiguous memory: those between the sampled bounds, or all.
struct Gathered {
  const uint32_t* keys;
  int64_t count;
};

Gathered gather(const Call& call, bool all) {
  const std::vector<Finding>& findings = call.workspace.findings;
  const auto count_of = [all](const Finding& each) { return all ? each.candidates.count : each.split.inside; };
  const auto source_of = [all](const Finding& each) { return all ? keys_of(each.candidates.value) : each.inside; };
  if (findings.size() == 1) return {source_of(findings[0]), count_of(findings[0])};
  int64_t count = 0;
  for (const Finding& each : findings) count += count_of(each);
  Key* to = call.workspace.keys.reserve(count + kOverhang);
  int64_t at = 0;
  for (const Finding& each : findings) {
    std::copy_n(source_of(each), count_of(each), to + at);
    at += count_of(each);
  }
  return {to, count};
}

Key ranked(const Call& call, const Gathered& gathered, int64_t rank) {
  Key* scratch = call.workspace.more_keys.reserve(gathered.count + kOverhang);
  return ranked_key(call.kernels, gathered.keys, gathered.count, rank, scratch);
}

Counts count_candidates(const Call& call, const Thresholds& thresholds, Key upper) {
  std::vector<Counts>& counts = call.workspace.counts;
  counts.resize(call.tasks);
  call.for_each_task([&](int task) {
    const Finding& finding = call.workspace.findings[task];
    const Candidates& candidates = finding.candidates;
    if (thresholds.sure <= upper) {
      counts[task] = call.kernels.count(finding.inside, finding.split.inside, thresholds);
      counts[task].sure += finding.split.above;
    } else {
      counts[task] = call.kernels.count(keys_of(candidates.value), candidates.count, thresholds);
    }
  });
  Counts total;
  for (const Counts& each : counts) {
    total.sure += each.sure;
    total.band += each.band;
  }
  return total;
}

}  // namespace

bool search(const Call& call, const SamplePlan& plan, const Bounds& bounds) {
  hvds_workspace& workspace = call.workspace;
  const bool dense = plan.share >= call.kernels.dense_from;
  const int32_t ahead = plan.share >= kMuchToCollect ? kFarAhead : hvds_bytes_ahead();
  const Manner manner{bounds, plan.capacity, dense, ahead, {call.output.dtype, streams(call)}};
  if (static_cast<int>(workspace.memory.size()) < call.tasks) workspace.memory.resize(call.tasks);
  workspace.findings.resize(call.tasks);
  if (call.choice.samplings > 0) workspace.block_sums.reserve(call.tiles());
  for (int task = 0; task < call.tasks; ++task) workspace.findings[task] = empty_finding(call, task, manner);
  call.for_each_task([&](int task) { scan_share(call, task, manner, workspace.findings[task]); });
  int64_t found = 0;
  for (const Finding& finding : workspace.findings) {
    if (finding.given_up) return false;
    found += finding.candidates.count;
  }
  return found >= call.rank();
}

void restore(const Call& call) {
  for (Finding& finding : call.workspace.findings) restore(call, finding);
}

Magnitudes rank_candidates(const Call& call) {
  Split total;
  for (const Finding& finding : call.workspace.findings) {
    total.above += finding.split.above;
    total.inside += finding.split.inside;
    total.highest = std::max(total.highest, finding.split.highest);
  }
  const bool is_inside = total.above < call.rank();  // false: the sample's upper bound was wrong
  const Key edge = ranked(call, gather(call, !is_inside), is_inside ? call.rank() - total.above : call.rank());
  return {edge, total.highest, 0};
}

float mean_of(const Call& call) {
  if (call.choice.samplings == 0) return 0;
  double total = 0;
  for (int64_t tile = 0; tile < call.tiles(); ++tile) total += call.workspace.block_sums.data()[tile];
  return static_cast<float>(total / static_cast<double>(call.input.size));
}

bool candidates_suffice(const Call& call, const Thresholds& thresholds) {
  if (!thresholds.literal) return true;
  return std::all_of(call.workspace.findings.begin(), call.workspace.findings.end(),
                     [&](const Finding& finding) { return finding.bounds.lower <= thresholds.band; });
}

void emit_candidates(const Call& call, const Bounds& bounds, const Magnitudes& magnitudes, Thresholds thresholds) {
  std::vector<Finding>& findings = call.workspace.findings;
  Counts total = count_candidates(call, thresholds, bounds.upper);
  if (without_answer(call, thresholds, total)) {
    thresholds = exact_thresholds(magnitudes.edge);
    total = count_candidates(call, thresholds, bounds.upper);
  }
  const Window window = window_of(call, thresholds, total);
  std::vector<Counts> before(findings.size());
  for (size_t task = 1; task < findings.size(); ++task) {
    const Counts& last = call.workspace.counts[task - 1];
    before[task].sure = before[task - 1].sure + last.sure;
    before[task].band = before[task - 1].band + last.band;
  }
  call.for_each_task([&](int task) {
    const Finding& finding = findings[task];
    Winners winners = winners_after(call, before[task], thresholds, window, finding.bounds.likely);
    Destination destination = destination_after(before[task], window);
    emit(call, finding.candidates.index, finding.candidates.value, finding.candidates.count, winners, destination);
  });
}

}  // namespace hvds
