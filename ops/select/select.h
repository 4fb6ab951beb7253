// Selection by magnitude on the CPU: exact, by Algorithm 1 of CommLib, by buckets, and fused with error feedback.
//
// Paper: Shi et al., "Towards Scalable Distributed Training of Deep Learning on Public Cloud Clusters" (CommLib),
// section 3. All results are the same bits under every instruction set (cpu_features.h) and any number of threads:
//
// Sum         acc[i] = (((p_0[i] + p_1[i]) + ...) + p_{count-1}[i]) + residual[i], in float32, each addition rounded to
//             nearest even, denormal numbers kept; half and bfloat16 parts are widened first. Without a residual the
//             last addition does not take place.
// Exact       The `kept` largest |acc|, compared as integers on the bits without the sign; of equal magnitudes the
//             lowest indices; indices ascend.
// MSTopK      Algorithm 1 with a = |acc|, literally, in this arithmetic. Mean: blocks of 4096 elements; in a block 64
//             float32 lanes (lane = i mod 64) add their elements in order; lanes are folded by halves, lane[j] +=
//             lane[j + h] for h = 32, 16, 8, 4, 2, 1; the blocks' sums are added in order in float64; mean =
//             float32(total / size). u = max a. l, r and ratio are float64; thres = float32(mean + ratio * (u - mean)),
//             computed in float64, each step rounded. Indices: those with a >= thres1, ascending, then `kept - k1` of
//             iota2 = those with thres2 <= a < thres1, ascending, from number `rand` on: rand = (splitmix64(seed) *
//             (len(iota2) - (kept - k1) + 1)) >> 64. Where Algorithm 1 has no answer (k1 = 0, or k1 < kept and thres2
//             was never set), the exact selection.
// Feedback    values[j] = wire(acc[indices[j]]), rounded to nearest even. residual_out[i] = acc[i] where i is not kept,
//             else acc[i] - float32(values[j]): what the receivers do not decode.
//
// Pointers need no more alignment than their elements have. Functions return 0 (HVDS_OK), HVDS_BAD_ARGUMENT (nothing was
// written) or HVDS_OUT_OF_MEMORY (outputs are unspecified). What the data hold is told apart, by `report` and `culprit`.
#ifndef HVD_SPARSE_OPS_SELECT_H_
#define HVD_SPARSE_OPS_SELECT_H_

#include <stdint.h>

#include "../common/dtype.h"
#include "../common/parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

enum hvds_status { HVDS_OK = 0, HVDS_BAD_ARGUMENT = -1, HVDS_OUT_OF_MEMORY = -2 };

// Scratch memory that calls, one at a time, use again: fresh memory costs more than the selection. It grows to what the
// largest call needs, about 12 bytes for each element kept and 1% of the vector.
typedef struct hvds_workspace hvds_workspace;
hvds_workspace* hvds_workspace_create(void);  // NULL when out of memory
void hvds_workspace_destroy(hvds_workspace* workspace);

// The exact selection from x [size] of `dtype` (enum hvds_dtype), 0 <= kept <= size < 2^31.
//   values [kept]:  the elements as they are, in the dtype of x
//   indices [kept]: where they stood
//   report [2]:     how many elements are not finite, and the index of the first (-1: all are finite); when some are
//                   not, the indices are still distinct and in range
//   parallel:       NULL: serially
int hvds_topk(const void* x, int dtype, int64_t size, int64_t kept, void* values, int32_t* indices, int64_t* report,
              hvds_workspace* workspace, const hvds_parallel* parallel);

// The same by MSTopK, with `samplings` >= 1 thresholds tried (N in Algorithm 1).
int hvds_mstopk(const void* x, int dtype, int64_t size, int64_t kept, int samplings, uint64_t seed, void* values,
                int32_t* indices, int64_t* report, hvds_workspace* workspace, const hvds_parallel* parallel);

// Sum, exact selection and feedback in one pass over memory.
//   parts:        `count` >= 1 vectors [size] of `dtype`, each `stride` >= size elements after the one before
//   residual:     [size], or NULL: none
//   wire:         the dtype of values (enum hvds_dtype)
//   values, indices: [kept]
//   residual_out: [size]; `residual` itself, or memory that overlaps no input
//   culprit [1]:    0; 1 + the lowest number of a part that holds a NaN or an infinity; or 1 + count where all parts are
//                 finite but acc is not, or is too large for the wire where it is kept. With a culprit indices are
//                 distinct and in range; values and residual_out are of no use.
int hvds_feedback_topk(const void* parts, int dtype, int64_t count, int64_t stride, const float* residual,
                       int64_t size, int64_t kept, int wire, void* values, int32_t* indices, float* residual_out,
                       int32_t* culprit, hvds_workspace* workspace, const hvds_parallel* parallel);

// The same by MSTopK.
int hvds_feedback_mstopk(const void* parts, int dtype, int64_t count, int64_t stride, const float* residual,
                         int64_t size, int64_t kept, int samplings, uint64_t seed, int wire, void* values,
                         int32_t* indices, float* residual_out, int32_t* culprit, hvds_workspace* workspace,
                         const hvds_parallel* parallel);

// The same with `kept` >= 1 elements of every `bucket` >= kept consecutive ones, and of a shorter last bucket as many as
// it has, at most `kept` (SparCML 8.3). Each bucket's selection is the exact one.
//   values, indices: [size / bucket * kept + min(size % bucket, kept)]
int hvds_feedback_bucket_topk(const void* parts, int dtype, int64_t count, int64_t stride, const float* residual,
                              int64_t size, int64_t bucket, int64_t kept, int wire, void* values, int32_t* indices,
                              float* residual_out, int32_t* culprit, hvds_workspace* workspace,
                              const hvds_parallel* parallel);

// How gradient dropping finds what to send (Aji and Heafield 2017, 3): the elements of acc whose magnitude exceeds a
// threshold, that of rank `rank` + 1 in a random sample of acc, or all of them where rank >= samples.
typedef struct {
  int64_t samples;  // elements drawn, at least 1: number i is at (splitmix64(splitmix64(seed) + i) * size) >> 64; where
                    // samples >= size, every element once
  int64_t rank;
  uint64_t seed;
  int64_t least, most;  // how many may exceed it; where more or fewer do, the sample has misled,
  int64_t kept;         // and so many are selected exactly
} hvds_sampling;

// Sum, feedback and the selection by a sampled threshold in one pass over memory; in two where the sample has misled.
//   parts .. wire, culprit: as for hvds_feedback_topk
//   residual_out: [size], memory that overlaps no input
//   sent [1]:     how many are sent; the workspace holds them for hvds_take_sent, which has to follow
int hvds_feedback_sampled(const void* parts, int dtype, int64_t count, int64_t stride, const float* residual,
                          int64_t size, const hvds_sampling* sampling, int wire, float* residual_out, int32_t* culprit,
                          int64_t* sent, hvds_workspace* workspace, const hvds_parallel* parallel);

// How a threshold that outlives its step finds what to send (DCT-DP, Gupta et al. 2021, Algorithm 1): the elements of acc
// whose magnitude reaches it, but no zeros.
typedef struct {
  int due;              // whether the threshold is first set to the `kept`-th largest magnitude of acc, or to 0 where
                        // kept = size
  int64_t kept;         // in [1, size]
  int64_t least, most;  // how many may be sent, least <= most <= size, least >= 1: where fewer reach it, the `least` of
                        // largest magnitude are; where more do, the `most`
} hvds_holding;

// Sum, feedback and the selection by a threshold that is held, in one pass over memory; in two where fewer than `least`
// reach it, and in one more where it is due.
//   parts .. wire, culprit: as for hvds_feedback_topk; size >= 1
//   threshold [1]: not negative; the new one where it is due
//   residual_out:  [size], memory that overlaps no input
//   sent [1]:      how many are sent; the workspace holds them for hvds_take_sent, which has to follow
//   clamped [1]:   whether others are sent than those that reach the threshold
int hvds_feedback_held(const void* parts, int dtype, int64_t count, int64_t stride, const float* residual, int64_t size,
                       const hvds_holding* holding, int wire, float* threshold, float* residual_out, int32_t* culprit,
                       int64_t* sent, int32_t* clamped, hvds_workspace* workspace, const hvds_parallel* parallel);

// Writes what the call before has found: values [sent] in the dtype `wire` of that call, and indices [sent], ascending.
void hvds_take_sent(const hvds_workspace* workspace, int wire, void* values, int32_t* indices);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_SELECT_H_
