// Records that come from another node: rows of equal length, each with its checksum, as in levels.checksum.
#ifndef HVD_SPARSE_OPS_DATACACHE_RECORDS_H_
#define HVD_SPARSE_OPS_DATACACHE_RECORDS_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// The checksums of `count` rows of `row_bytes` each, given their samples' indices and labels.
void datacache_records_checksums(const uint8_t* rows, uint64_t row_bytes, uint64_t count, const uint64_t* indices,
                                 const int64_t* labels, uint64_t* checksums);

// Copies row i to to[places[i]] and verifies the checksum of the copy.
//   sound: [count], 1 where the checksum matches; elsewhere the copied row must not be used.
// Returns the number of sound rows.
uint64_t datacache_records_place(const uint8_t* rows, uint64_t row_bytes, uint64_t count, const uint64_t* indices,
                                 const int64_t* labels, const uint64_t* checksums, uint8_t* to,
                                 const uint64_t* places, uint8_t* sound);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_DATACACHE_RECORDS_H_
