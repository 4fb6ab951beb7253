// Messages of values in few bits each, of ranks that know neither each other's counts nor how many scales there are.
//
// A message is HVDS_CODED_HEADER_WORDS words: how many entries, 1 where what it carries is of no use as something was
// not finite, else 0, how many scales, how many bytes of codes; then the indices, the scales, and the codes, padded with
// zeros to a word.
#ifndef HVD_SPARSE_OPS_CODED_H_
#define HVD_SPARSE_OPS_CODED_H_

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HVDS_CODED_HEADER_WORDS 4

// Reads what stands before each of the messages [words] of `ranks` ranks.
//   lengths:   [3][ranks]: entries, scales and bytes of codes of each rank.
//   nonfinite: whether any rank says so.
// Returns -1, or the first rank whose message does not fit; `ranks` where words are left over.
int64_t hvds_read_coded(const int32_t* messages, int64_t words, int64_t ranks, int32_t* lengths, bool* nonfinite);

// Takes messages that were read apart, rank after rank.
//   indices, scales, codes: as long as the sums of their lengths; there is no padding between the codes.
void hvds_unpack_coded(const int32_t* messages, const int32_t* lengths, int64_t ranks, int32_t* indices, float* scales,
                       uint8_t* codes);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_CODED_H_
