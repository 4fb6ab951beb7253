// The inner loops of the selection on the CPU, one table per instruction set.
//
// All loops over elements or candidates are here; the decisions are in select_cpu*.cc, which exist only once.
#ifndef HVD_SPARSE_OPS_SELECT_CPU_KERNELS_H_
#define HVD_SPARSE_OPS_SELECT_CPU_KERNELS_H_

#include "select_rules.h"

namespace hvds {

constexpr Key kNoKey = kHighestKey + 1;  // a bound that no key reaches
constexpr int64_t kOverhang = 16;        // entries that a vector store may write past the last valid one
constexpr int64_t kBatch = 1024;         // candidates emitted at a time

// Elements that may be selected, in ascending order of index. Both arrays have room for kOverhang more.
struct Candidates {
  int32_t* index;
  float* value;
  int64_t count;
};

// The bounds of a scan: candidates are the elements that reach `lower`; almost surely, all winners do, and all that
// reach `upper` are winners. Those that reach `likely`, between the two, are winners more often than not.
struct Bounds {
  Key lower;
  Key likely;
  Key upper;
};

// The number of candidates that reach an upper bound, of those that do not, and the largest key of all.
struct Split {
  int64_t above = 0;
  int64_t inside = 0;
  Key highest = 0;
};

// Consecutive elements of the vector, starting at number `first`. Pointers are to these elements.
struct Tile {
  const void* source;     // of the dtype of the scan
  const float* residual;  // feedback only: what is added, or NULL
  float* residual_out;    // feedback only
  int32_t first;
  int32_t length;
  int32_t ahead;  // prefetch distance, in bytes
};

// How a scan with feedback writes.
struct Writing {
  int wire;     // enum hvds_dtype
  bool stream;  // past the caches
};

// Which candidates win; those of the band are numbered starting at `band_seen`.
struct Winners {
  Thresholds thresholds;
  bool feedback;      // whether `unsettled` and `revoked` are needed
  Key settled_from;   // the scan treated elements that reach it as winners
  int64_t band_seen;  // continues to count
  int64_t band_first, band_end;
};

// Winners among at most kBatch candidates: `sure` holds the sure ones, or all if the selection is not literal; `band`,
// the window of a literal one. Then winners that the scan took for losers, and losers that it took for winners.
struct Emitted {
  Candidates sure, band, unsettled, revoked;
};

struct Counts {
  int64_t sure = 0;
  int64_t band = 0;
};

struct Kernels {
  // The share of candidates above which it is faster to treat every group of elements as if it held some: an
  // unpredictable branch costs more than the work it saves.
  double dense_from;

  // Appends the elements of a tile that reach bounds.lower to `found`. If `sum` is not NULL, writes the tile's sum of
  // magnitudes to it, in the order defined in select.h.
  void (*scan[3])(const Tile& tile, const Bounds& bounds, bool dense, Candidates& found, float* sum);

  // The same for acc = source + residual; also writes residual_out: acc, minus the rounded acc where it reaches
  // bounds.likely.
  void (*feed_back[3])(const Tile& tile, const Writing& writing, const Bounds& bounds, bool dense, Candidates& found,
                       float* sum);

  // sum[i] = ((p_0[i] + p_1[i]) + ...) + p_{count-1}[i], for one tile; parts lie `stride` elements apart.
  void (*sum_parts[3])(const void* parts, int64_t count, int64_t stride, int64_t length, float* sum);

  // To be called after streaming scans, by the thread that ran them, before others read what they wrote.
  void (*end_streaming)();

  // Adds to `split`, and appends the keys in [low, high) to window[split.inside], with room for kOverhang more. Signs
  // are ignored.
  void (*split)(const uint32_t* keys, int64_t count, Key low, Key high, Key* window, Split& split);

  Counts (*count)(const uint32_t* keys, int64_t count, const Thresholds& thresholds);

  // The largest magnitude of each of kLanes groups (element i is in group i mod kLanes); 0 for an empty group.
  void (*fold)(const uint32_t* keys, int64_t count, Key* maxima);

  // Keeps the candidates above `edge` and the first `ties` of those equal to it, in order.
  void (*compact)(Candidates& candidates, Key edge, int64_t ties);

  void (*emit)(const int32_t* index, const float* value, int64_t count, Winners& winners, Emitted& emitted);

  // Rounds to the wire's dtype; writes no more than `count` values.
  void (*narrow[3])(const float* values, int64_t count, void* out);

  // Copies past the caches; must be followed by end_streaming.
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
