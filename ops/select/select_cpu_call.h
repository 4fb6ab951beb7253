// One call of the selection on the CPU: its arguments and intermediate results, and its steps.
#ifndef HVD_SPARSE_OPS_SELECT_CPU_CALL_H_
#define HVD_SPARSE_OPS_SELECT_CPU_CALL_H_

#include <algorithm>
#include <memory>
#include <vector>

#include "../common/float_mode.h"
#include "../common/parallel.h"
#include "select.h"
#include "select_cpu_kernels.h"
#include "select_cpu_rank.h"

namespace hvds {

// Memory that grows, is not initialized and loses its contents when it grows.
template <typename T>
class Buffer {
 public:
  T* reserve(int64_t count) {
    if (count > capacity_) {
      capacity_ = 0;
      memory_.reset();
      memory_.reset(new T[static_cast<size_t>(count)]);
      capacity_ = count;
    }
    return memory_.get();
  }
  T* data() const { return memory_.get(); }

 private:
  std::unique_ptr<T[]> memory_;
  int64_t capacity_ = 0;
};

// The findings of one task of a scan in its share of the vector.
struct Finding {
  Candidates candidates{};
  Bounds bounds{};        // currently used: `lower` rises when there are too many candidates
  Key* inside = nullptr;  // the keys of the candidates below the sampled upper bound
  Split split{};          // of the first `done` candidates
  int64_t done = 0;
  int sorted_out = 0;     // how often there were too many candidates
  bool given_up = false;  // that was too often: the rest of the share was not searched
};

struct TaskMemory {
  Buffer<int32_t> index;
  Buffer<float> value;
  Buffer<Key> keys;
  Buffer<float> sum;  // of the parts, and acc, of one run: select_cpu_buckets.cc
  Buffer<float> acc;
};

}  // namespace hvds

struct hvds_workspace {
  std::vector<hvds::TaskMemory> memory;
  std::vector<hvds::Finding> findings;
  std::vector<hvds::Counts> counts;
  std::vector<uint32_t> histograms;
  hvds::Buffer<hvds::Key> sample;
  hvds::Buffer<hvds::Key> keys;
  hvds::Buffer<hvds::Key> more_keys;
  hvds::Buffer<float> block_sums;
  hvds::Buffer<float> sent_values;  // for select_cpu_above.cc, in the wire's dtype
  hvds::Buffer<int32_t> sent_indices;
  int64_t sent_exactly = 0;  // how many they hold; -1: all candidates of the findings are sent instead
};

namespace hvds {

// The source of acc: parts [count] that lie `stride` elements apart, and an optional residual.
struct Input {
  const void* parts;
  int dtype;
  int64_t count;
  int64_t stride;
  const float* residual;
  int64_t size;
};

// Destination of the selection; residual_out is NULL if there is no feedback.
struct Output {
  void* values;
  int dtype;
  int32_t* indices;
  float* residual_out;
};

inline const uint32_t* keys_of(const float* values) { return reinterpret_cast<const uint32_t*>(values); }

// How the indices are chosen; samplings 0: exactly.
struct Choice {
  int64_t kept;
  int samplings;
  uint64_t seed;
};

struct Call {
  const Kernels& kernels;
  const Input& input;
  const Output& output;
  const Choice& choice;
  hvds_workspace& workspace;
  const hvds_parallel* parallel;
  int tasks;

  int64_t tiles() const { return (input.size + kTile - 1) / kTile; }
  int64_t first_tile(int task) const { return tiles() * task / tasks; }
  int64_t length_of(int64_t tile) const { return std::min<int64_t>(kTile, input.size - tile * kTile); }

  // The rank of the magnitude sought: that of the last kept element, or for MSTopK of the one after it.
  bool all_fit() const { return choice.kept == input.size; }
  int64_t rank() const {
    const int64_t after = choice.samplings > 0 && !all_fit() ? 1 : 0;
    return std::max<int64_t>(1, choice.kept + after);
  }

  template <typename Body>
  void for_each_task(Body&& body) const {
    parallel_for(parallel, tasks, [&](int task) {
      const StandardFloats standard;
      body(task);
    });
  }
};

// What a search of the vector has found about the magnitudes.
struct Magnitudes {
  Key edge;     // of rank Call::rank()
  Key highest;
  float mean;   // MSTopK only
};

// Where the next winners go: positions in values and indices.
struct Destination {
  int64_t sure;
  int64_t band;
};

// ---- select_cpu.cc: one selection, and the checks common to all ----

int tasks_for(int64_t size, const hvds_parallel* parallel);

// Selects, and returns what was found about acc.
Magnitudes run(const Input& input, const Output& output, const Choice& choice, hvds_workspace& workspace,
               const hvds_parallel* parallel);

// Whether the arguments are valid for the kernels; the caller checks the number of elements to keep.
bool valid(const Input& input, const Output& output, const hvds_workspace* workspace);

// The culprit as defined in select.h; `highest` is the largest magnitude of acc and is sent in the dtype `wire`.
int32_t culprit_of(const Input& input, int wire, Key highest);

// ---- select_cpu_emit.cc: from thresholds to output ----

Thresholds thresholds_of(const Call& call, const Magnitudes& magnitudes);

// Whether Algorithm 1 has no answer because the band reaches down to the least element: only counting shows it.
bool without_answer(const Call& call, const Thresholds& thresholds, const Counts& total);

// The winners of a stretch of the vector, given the counts `before` it, and where they go. Elements that reach
// `settled_from` have already been removed from residual_out.
Winners winners_after(const Call& call, const Counts& before, const Thresholds& thresholds, const Window& window,
                      Key settled_from);
Destination destination_after(const Counts& before, const Window& window);
Window window_of(const Call& call, const Thresholds& thresholds, const Counts& total);

void emit(const Call& call, const int32_t* index, const float* value, int64_t count, Winners& winners,
          Destination& destination);

// ---- select_cpu_scan.cc: one pass over memory ----

// Sums, adds, writes residual_out and collects candidates into workspace.findings. Returns whether these include all
// elements that may be kept.
bool search(const Call& call, const SamplePlan& plan, const Bounds& bounds);

// Undoes what the scan removed from residual_out in advance, so that it holds acc.
void restore(const Call& call);

// To be called after a successful search.
Magnitudes rank_candidates(const Call& call);

// The mean of Algorithm 1; to be called after a search, successful or not.
float mean_of(const Call& call);

bool candidates_suffice(const Call& call, const Thresholds& thresholds);
void emit_candidates(const Call& call, const Bounds& bounds, const Magnitudes& magnitudes, Thresholds thresholds);

// ---- select_cpu_above.cc: all elements that reach one bound ----

// The result of a scan with a single bound. If `complete`, the workspace's candidates are all elements that reach it.
struct Found {
  bool complete;  // false: there are more than call.choice.kept
  int64_t count;
  Key highest;
};

// Scans for elements that reach `bound`, about `expected` and at most call.choice.kept of them.
Found find_above(const Call& call, Key bound, int64_t expected);

// Makes hvds_take_sent return all candidates of the scan.
void send_found(const Call& call);

// Makes hvds_take_sent return `count` elements, which the caller writes to the Output returned.
Output send_exactly(const Call& call, int64_t count);

// ---- select_cpu_whole.cc: several passes, for inputs that mislead the sample ----

// acc of a tile, after `restore`: computed in `room` if it is not in memory as float32.
const float* acc_of(const Call& call, int64_t tile, float* room);

Magnitudes rank_all(const Call& call);
void emit_all(const Call& call, const Magnitudes& magnitudes, Thresholds thresholds);

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_SELECT_CPU_CALL_H_
