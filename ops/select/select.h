// Selection by magnitude on the CPU: exact, by Algorithm 1 of CommLib, by buckets, and fused with error feedback.
//
// Paper: Shi et al., "Towards Scalable Distributed Training of Deep Learning on Public Cloud Clusters" (CommLib),
// section 3. All results are bitwise identical under every instruction set (cpu_features.h) and any number of threads:
//
// Sum         acc[i] = (((p_0[i] + p_1[i]) + ...) + p_{count-1}[i]) + residual[i], in float32, each addition rounded to
//             nearest even, denormal numbers kept; half and bfloat16 parts are widened first. Without a residual the
//             last addition is omitted.
// Exact       The `kept` largest |acc|, compared as integers on the bits without the sign; of equal magnitudes those
//             with the lowest indices; indices ascend.
// MSTopK      Algorithm 1 with a = |acc|, literally, in this arithmetic. Mean: blocks of 4096 elements; in a block 64
//             float32 lanes (lane = i mod 64) add their elements in order; lanes are folded by halves, lane[j] +=
//             lane[j + h] for h = 32, 16, 8, 4, 2, 1; the blocks' sums are added in order in float64; mean =
//             float32(total / size). u = max a. l, r and ratio are float64; thres = float32(mean + ratio * (u - mean)),
//             computed in float64, each step rounded. Indices: those with a >= thres1, ascending, then `kept - k1` of
//             iota2 = those with thres2 <= a < thres1, ascending, starting at number `rand`: rand = (splitmix64(seed) *
//             (len(iota2) - (kept - k1) + 1)) >> 64. If Algorithm 1 has no answer (k1 = 0, or k1 < kept and thres2 was
//             never set), the exact selection.
// Feedback    values[j] = wire(acc[indices[j]]), rounded to nearest even. residual_out[i] = acc[i] if i is not kept,
//             else acc[i] - float32(values[j]): the part that the receivers do not get.
//
// Pointers need no more alignment than their element type. Functions return 0 (HVDS_OK), HVDS_BAD_ARGUMENT (nothing was
// written) or HVDS_OUT_OF_MEMORY (outputs are unspecified). Invalid data are reported separately, by `report` and
// `culprit`.
#ifndef HVD_SPARSE_OPS_SELECT_H_
#define HVD_SPARSE_OPS_SELECT_H_

#include <stdint.h>

#include "../common/dtype.h"
#include "../common/parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

enum hvds_status { HVDS_OK = 0, HVDS_BAD_ARGUMENT = -1, HVDS_OUT_OF_MEMORY = -2 };

// Scratch memory that successive calls reuse, one at a time: fresh memory costs more than the selection. It grows to
// the needs of the largest call, about 12 bytes per kept element plus 1% of the vector.
typedef struct hvds_workspace hvds_workspace;
hvds_workspace* hvds_workspace_create(void);  // NULL when out of memory
void hvds_workspace_destroy(hvds_workspace* workspace);

// The exact selection from x [size] of `dtype` (enum hvds_dtype), 0 <= kept <= size < 2^31.
//   values [kept]:  the selected elements, in the dtype of x
//   indices [kept]: their indices in x
//   report [2]:     the number of elements that are not finite, and the index of the first (-1: all are finite); if
//                   some are not, the indices are still distinct and in range
//   parallel:       NULL: serial
int hvds_topk(const void* x, int dtype, int64_t size, int64_t kept, void* values, int32_t* indices, int64_t* report,
              hvds_workspace* workspace, const hvds_parallel* parallel);

// The same by MSTopK, with `samplings` >= 1 thresholds tried (N in Algorithm 1).
int hvds_mstopk(const void* x, int dtype, int64_t size, int64_t kept, int samplings, uint64_t seed, void* values,
                int32_t* indices, int64_t* report, hvds_workspace* workspace, const hvds_parallel* parallel);

// Sum, exact selection and feedback in one pass over memory.
//   parts:        `count` >= 1 vectors [size] of `dtype`, each `stride` >= size elements after the one before
//   residual:     [size], or NULL for none
//   wire:         the dtype of values (enum hvds_dtype)
//   values, indices: [kept]
//   residual_out: [size]; `residual` itself, or memory that overlaps no input
//   culprit [1]:  0; 1 + the lowest number of a part that holds a NaN or an infinity; or 1 + count if all parts are
//                 finite but acc is not, or a kept element is too large for the wire. With a culprit, indices are
//                 distinct and in range; values and residual_out must not be used.
int hvds_feedback_topk(const void* parts, int dtype, int64_t count, int64_t stride, const float* residual,
                       int64_t size, int64_t kept, int wire, void* values, int32_t* indices, float* residual_out,
                       int32_t* culprit, hvds_workspace* workspace, const hvds_parallel* parallel);

// The same by MSTopK.
int hvds_feedback_mstopk(const void* parts, int dtype, int64_t count, int64_t stride, const float* residual,
                         int64_t size, int64_t kept, int samplings, uint64_t seed, int wire, void* values,
                         int32_t* indices, float* residual_out, int32_t* culprit, hvds_workspace* workspace,
                         const hvds_parallel* parallel);

// The same with `kept` >= 1 elements of every `bucket` >= kept consecutive ones; of a shorter last bucket min(kept, its
// length) (SparCML 8.3). Each bucket's selection is the exact one.
//   values, indices: [size / bucket * kept + min(size % bucket, kept)]
int hvds_feedback_bucket_topk(const void* parts, int dtype, int64_t count, int64_t stride, const float* residual,
                              int64_t size, int64_t bucket, int64_t kept, int wire, void* values, int32_t* indices,
                              float* residual_out, int32_t* culprit, hvds_workspace* workspace,
                              const hvds_parallel* parallel);

// The selection of gradient dropping (Aji and Heafield 2017, 3): the elements of acc whose magnitude exceeds a
// threshold, which is the magnitude of rank `rank` + 1 in a random sample of acc; all elements if rank >= samples.
typedef struct {
  int64_t samples;  // elements drawn, at least 1: number i is at (splitmix64(splitmix64(seed) + i) * size) >> 64; if
                    // samples >= size, every element once
  int64_t rank;
  uint64_t seed;
  int64_t least, most;  // how many may exceed it; if more or fewer do, the sample has misled,
  int64_t kept;         // and this many are selected exactly
} hvds_sampling;

// Sum, feedback and selection by a sampled threshold in one pass over memory; in two if the sample has misled.
//   parts .. wire, culprit: as for hvds_feedback_topk
//   residual_out: [size], memory that overlaps no input
//   sent [1]:     the number of elements sent; the workspace holds them for hvds_take_sent, which must be called next
int hvds_feedback_sampled(const void* parts, int dtype, int64_t count, int64_t stride, const float* residual,
                          int64_t size, const hvds_sampling* sampling, int wire, float* residual_out, int32_t* culprit,
                          int64_t* sent, hvds_workspace* workspace, const hvds_parallel* parallel);

// The selection by a threshold that is kept over several steps (DCT-DP, Gupta et al. 2021, Algorithm 1): the elements
// of acc whose magnitude reaches it, except zeros.
typedef struct {
  int due;              // whether the threshold is first set to the `kept`-th largest magnitude of acc, or to 0 if
                        // kept = size
  int64_t kept;         // in [1, size]
  int64_t least, most;  // how many may be sent, least <= most <= size, least >= 1: if fewer reach it, the `least` of
                        // largest magnitude are; if more do, the `most`
} hvds_holding;

// Sum, feedback and selection by a held threshold in one pass over memory; in two if fewer than `least` elements reach
// it, and in one more if it is due.
//   parts .. wire, culprit: as for hvds_feedback_topk; size >= 1
//   threshold [1]: not negative; replaced by the new one if it is due
//   residual_out:  [size], memory that overlaps no input
//   sent [1]:      the number of elements sent; the workspace holds them for hvds_take_sent, which must be called next
//   clamped [1]:   whether the elements sent differ from those that reach the threshold
int hvds_feedback_held(const void* parts, int dtype, int64_t count, int64_t stride, const float* residual, int64_t size,
                       const hvds_holding* holding, int wire, float* threshold, float* residual_out, int32_t* culprit,
                       int64_t* sent, int32_t* clamped, hvds_workspace* workspace, const hvds_parallel* parallel);

// Writes the result of the previous call: values [sent] in the dtype `wire` of that call, and indices [sent],
// ascending.
void hvds_take_sent(const hvds_workspace* workspace, int wire, void* values, int32_t* indices);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_SELECT_H_
