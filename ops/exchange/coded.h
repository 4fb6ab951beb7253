// Messages of values coded in a few bits each, between ranks that know neither each other's counts nor the number of
// scales.
//
// A message starts with HVDS_CODED_HEADER_WORDS words: the number of entries; 1 if the contents are unusable because
// something was not finite, else 0; the number of scales; the number of bytes of codes. The indices, the scales and the
// codes follow, the codes padded with zeros to a word.
#ifndef HVD_SPARSE_OPS_CODED_H_
#define HVD_SPARSE_OPS_CODED_H_

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HVDS_CODED_HEADER_WORDS 4

// Reads the headers of the messages [words] of `ranks` ranks.
//   lengths:   [3][ranks]: entries, scales and bytes of codes of each rank.
//   nonfinite: whether any rank's header says so.
// Returns -1, or the first rank whose message does not fit, or `ranks` if words are left over.
int64_t hvds_read_coded(const int32_t* messages, int64_t words, int64_t ranks, int32_t* lengths, bool* nonfinite);

// Splits messages whose headers were read, rank after rank.
//   indices, scales, codes: as long as the sums of their lengths; there is no padding between the codes.
void hvds_unpack_coded(const int32_t* messages, const int32_t* lengths, int64_t ranks, int32_t* indices, float* scales,
                       uint8_t* codes);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_CODED_H_
