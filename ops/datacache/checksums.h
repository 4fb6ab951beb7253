// Checksums of records: XXH3 for the cache's own storage, CRC-32C for the framing of TFRecord files.
#ifndef HVD_SPARSE_OPS_DATACACHE_CHECKSUMS_H_
#define HVD_SPARSE_OPS_DATACACHE_CHECKSUMS_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// XXH3_64bits_withSeed, as specified in xxHash's doc/xxhash_spec.md; the same on every processor.
uint64_t datacache_xxh3(const void* data, size_t length, uint64_t seed);

// Copies and hashes in one pass; returns what datacache_xxh3 would return for the copy.
uint64_t datacache_xxh3_copy(void* to, const void* from, size_t length, uint64_t seed);

// CRC-32C (Castagnoli) of the bytes, not masked and with the standard initial value.
uint32_t datacache_crc32c(const void* data, size_t length);

// The seed of a record's checksum: a record at the wrong index or with the wrong label fails its check.
static inline uint64_t datacache_record_seed(uint64_t index, int64_t label) {
  return index * 0x9E3779B97F4A7C15ULL + (uint64_t)label;
}

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_DATACACHE_CHECKSUMS_H_
