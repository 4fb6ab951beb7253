#include "select_cpu_rank.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace hvds {
namespace {

constexpr int64_t kFew = 1024;             // keys that are ranked directly
constexpr int64_t kProbes = 512;           // keys that narrow down the range of a rank
constexpr double kSigmas = 4;              // how safe bounds are: wrong once in 30,000 times
constexpr int64_t kSmallVector = 1 << 14;  // elements that are not worth sampling

Key ranked_at_once(const uint32_t* keys, int64_t count, int64_t rank, Key* scratch) {
  for (int64_t i = 0; i < count; ++i) scratch[i] = keys[i] & kHighestKey;
  std::nth_element(scratch, scratch + rank - 1, scratch + count, std::greater<Key>());
  return scratch[rank - 1];
}

// Ranks in a sample of `drawn` out of `count`, between which the element of rank `rank` is found almost always. They
// may lie outside the sample.
struct SampleRanks {
  double lower;
  double upper;
};

SampleRanks sample_ranks(double rank, double count, double drawn) {
  const double share = rank / count;
  const double expected = share * drawn;
  const double deviation = kSigmas * std::sqrt(expected * std::max(0.0, 1 - share));
  return {expected + deviation + kSigmas, expected - deviation - 1};
}

// Keys [low, high) that almost always enclose the key of a rank, from equally spaced probes.
Bounds probe(const uint32_t* keys, int64_t count, int64_t rank) {
  Key probes[kProbes];
  for (int64_t i = 0; i < kProbes; ++i) probes[i] = keys[(2 * i + 1) * count / (2 * kProbes)] & kHighestKey;
  const SampleRanks ranks = sample_ranks(static_cast<double>(rank), static_cast<double>(count), kProbes);
  Bounds bounds{0, kNoKey, kNoKey};
  Key* end = probes + kProbes;
  if (ranks.lower < kProbes) {
    Key* lower = probes + static_cast<int64_t>(ranks.lower);
    std::nth_element(probes, lower, end, std::greater<Key>());
    bounds.lower = *lower;
    end = lower;
  }
  if (ranks.upper >= 1) {
    Key* upper = probes + static_cast<int64_t>(ranks.upper) - 1;
    std::nth_element(probes, upper, end, std::greater<Key>());
    bounds.upper = std::max(*upper, bounds.lower + 1);
  }
  return bounds;
}

}  // namespace

Key ranked_key(const Kernels& kernels, const uint32_t* keys, int64_t count, int64_t rank, Key* scratch) {
  while (count > kFew) {
    const Bounds bounds = probe(keys, count, rank);
    Split split;
    kernels.split(keys, count, bounds.lower, bounds.upper, scratch, split);
    const bool found = split.above < rank && rank <= split.above + split.inside;
    if (found && bounds.upper == bounds.lower + 1) return bounds.lower;  // all of them are equal
    if (!found || split.inside > count / 2) return ranked_at_once(keys, count, rank, scratch);
    // As each round at least halves what is left, all rounds together fit into the scratch memory.
    keys = scratch;
    scratch += split.inside;
    count = split.inside;
    rank -= split.above;
  }
  return ranked_at_once(keys, count, rank, scratch);
}

SamplePlan plan_sample(int64_t size, int64_t rank) {
  const SamplePlan all{0, 0, 0, 0, 1, size};
  const double d = static_cast<double>(size);
  const double k = static_cast<double>(rank);
  // A larger sample costs random reads; a smaller one leaves more candidates between the bounds.
  const double hits = std::max(4.0, 2.5 * std::pow(k * k / d, 0.6));
  const int64_t groups = static_cast<int64_t>(std::ceil(hits * d / k / kNeighbours));
  const int64_t drawn = groups * kNeighbours;
  if (size <= kSmallVector || 2 * drawn > size) return all;
  const SampleRanks ranks = sample_ranks(k, d, static_cast<double>(drawn));
  if (ranks.lower > static_cast<double>(drawn)) return all;
  const double share = ranks.lower / static_cast<double>(drawn);
  const double capacity = 1.5 * std::max(k, share * d) + 4 * kTile;
  const int64_t likely = std::max<int64_t>(1, std::llround(k / d * static_cast<double>(drawn)));
  return {groups, static_cast<int64_t>(ranks.lower), likely, std::max<int64_t>(0, static_cast<int64_t>(ranks.upper)),
          share, std::min(size, static_cast<int64_t>(capacity))};
}

Bounds sampled_bounds(const Kernels& kernels, const SamplePlan& plan, const Key* sample, Key* scratch) {
  const int64_t drawn = plan.groups * kNeighbours;
  Bounds bounds{0, kNoKey, kNoKey};
  if (plan.groups == 0) return bounds;
  // Non-finite elements must always be found.
  bounds.lower = std::min(ranked_key(kernels, sample, drawn, plan.lower_rank, scratch), kInfinityKey);
  bounds.likely = std::max(ranked_key(kernels, sample, drawn, plan.likely_rank, scratch), bounds.lower);
  if (plan.upper_rank > 0) {
    bounds.upper = std::max(ranked_key(kernels, sample, drawn, plan.upper_rank, scratch), bounds.lower + 1);
  }
  return bounds;
}

}  // namespace hvds
