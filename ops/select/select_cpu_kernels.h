// The inner loops of the selection on the CPU, one table of them for each instruction set.
//
// Everything that visits every element, or every candidate, is here; what decides is in select_cpu*.cc, once.
#ifndef HVD_SPARSE_OPS_SELECT_CPU_KERNELS_H_
#define HVD_SPARSE_OPS_SELECT_CPU_KERNELS_H_

#include "select_rules.h"

namespace hvds {

constexpr Key kNoKey = kHighestKey + 1;  // a bound that nothing reaches
constexpr int64_t kOverhang = 16;        // entries that a vector store may write beyond the last one that counts
constexpr int64_t kBatch = 1024;         // candidates that are emitted at a time

// Elements that may be selected, in ascending order of index. Both arrays have room for kOverhang more.
struct Candidates {
  int32_t* index;
  float* value;
  int64_t count;
};

// What a scan looks for: candidates reach `lower`, and those that reach `upper` are kept, both almost surely; those that
// reach `likely`, between the two, more often than not.
struct Bounds {
  Key lower;
  Key likely;
  Key upper;
};

// How many candidates reach an upper bound, how many do not, and the largest of all.
struct Split {
  int64_t above = 0;
  int64_t inside = 0;
  Key highest = 0;
};

// Consecutive elements of the vector, from number `first` on. Pointers are to these elements.
struct Tile {
  const void* source;     // of the dtype of the scan
  const float* residual;  // feedback only: what is added, or NULL
  float* residual_out;    // feedback only
  int32_t first;
  int32_t length;
  int32_t ahead;  // bytes between a load and what it asks memory for
};

// How a scan with feedback writes.
struct Writing {
  int wire;     // enum hvds_dtype
  bool stream;  // past the caches
};

// Which candidates win; those of the band are numbered from `band_seen` on.
struct Winners {
  Thresholds thresholds;
  bool feedback;      // whether `unsettled` and `revoked` are wanted
  Key settled_from;   // the scan took what reaches it for winners
  int64_t band_seen;  // counts on
  int64_t band_first, band_end;
};

// Winners of at most kBatch candidates: `sure`, or all of them where the selection is not literal; `band`, the window
// of a literal one. Then those that the scan took for losers, and the losers that it took for winners.
struct Emitted {
  Candidates sure, band, unsettled, revoked;
};

struct Counts {
  int64_t sure = 0;
  int64_t band = 0;
};

struct Kernels {
  // The share of candidates from which on it is faster to treat every group of elements as if it held some: a branch
  // that is taken now and then costs more than the work that it saves.
  double dense_from;

  // Adds the elements of a tile that reach bounds.lower to `found`. If `sum` is not NULL, writes the tile's sum of
  // magnitudes to it, in the order of select.h.
  void (*scan[3])(const Tile& tile, const Bounds& bounds, bool dense, Candidates& found, float* sum);

  // The same for acc = source + residual, and writes residual_out: acc, less the rounded acc where it reaches
  // bounds.likely.
  void (*feed_back[3])(const Tile& tile, const Writing& writing, const Bounds& bounds, bool dense, Candidates& found,
                       float* sum);

  // sum[i] = ((p_0[i] + p_1[i]) + ...) + p_{count-1}[i], for one tile; parts lie `stride` elements apart.
  void (*sum_parts[3])(const void* parts, int64_t count, int64_t stride, int64_t length, float* sum);

  // To be called after scans that stream, by the thread that ran them, before others read what they wrote.
  void (*end_streaming)();

  // Adds to `split`, and appends the keys in [low, high) to window[split.inside], with room for kOverhang more. Signs are
  // ignored.
  void (*split)(const uint32_t* keys, int64_t count, Key low, Key high, Key* window, Split& split);

  Counts (*count)(const uint32_t* keys, int64_t count, const Thresholds& thresholds);

  // The largest magnitude of each of kLanes groups (element i is in group i mod kLanes), 0 where a group is empty.
  void (*fold)(const uint32_t* keys, int64_t count, Key* maxima);

  // Keeps those above `edge` and the first `ties` of those equal to it, in order.
  void (*compact)(Candidates& candidates, Key edge, int64_t ties);

  void (*emit)(const int32_t* index, const float* value, int64_t count, Winners& winners, Emitted& emitted);

  // Rounds to the wire's dtype; writes no more than `count`.
  void (*narrow[3])(const float* values, int64_t count, void* out);

  // Copies past the caches; end_streaming goes with it.
  void (*stream_copy)(const void* from, int64_t bytes, void* to);
};

// The table for a level of cpu_features.h.
const Kernels& kernels_of(int isa);

extern const Kernels kBaseKernels;
#if defined(__x86_64__) && defined(__GNUC__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_SELECT_CPU_KERNELS_H_
