// The memory level of the cache: records in memory that all processes of a node map.
//
// Layout: a header of 4096 bytes (the owner's, except the word at `kNext`), an entry per slot, then the payloads, each
// aligned to 64 bytes. A record is written once. A writer must hold the lock of the record's slot, which the caller
// arranges; readers need no lock. Nothing read from this memory is trusted, as it may have been damaged.
#ifndef HVD_SPARSE_OPS_DATACACHE_SLAB_H_
#define HVD_SPARSE_OPS_DATACACHE_SLAB_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// A mapped slab. `first` is the index of the sample in slot 0.
typedef struct datacache_slab {
  uint8_t* base;
  uint64_t bytes;  // total size, at least datacache_slab_overhead(slots)
  uint64_t first;
  uint64_t slots;
} datacache_slab;

enum datacache_found {
  DATACACHE_MISSING = 0,
  DATACACHE_FOUND = 1,
  DATACACHE_DAMAGED = 2,  // its checksum or position is wrong
};

#define DATACACHE_NONE UINT64_MAX

// Bytes of the header and the entries, up to the first payload.
uint64_t datacache_slab_overhead(uint64_t slots);

// Bytes that a payload of this length occupies.
uint64_t datacache_slab_footprint(uint64_t length);

// Turns zeroed memory into an empty slab.
void datacache_slab_format(const datacache_slab* slab);

// Bytes up to the end of the last payload, including the header and the entries.
uint64_t datacache_slab_used(const datacache_slab* slab);

// Writes a record and then publishes it with release semantics. The caller holds the lock of the sample's slot. Returns
// 1 if the record is there (possibly from before), 0 if it does not fit, -1 for a sample without a slot.
int datacache_slab_publish(const datacache_slab* slab, uint64_t index, const void* payload, uint64_t length,
                           int64_t label);

// The lengths, unchecked, of the records of `count` samples; DATACACHE_NONE where none is published.
void datacache_slab_lengths(const datacache_slab* slab, const uint64_t* indices, uint64_t count, uint64_t* lengths);

// Removes a record so that it can be published again elsewhere; the space it occupied is not reused. The caller holds
// the lock of the sample's slot.
void datacache_slab_forget(const datacache_slab* slab, uint64_t index);

// Copies the records of `count` samples into rows of `row_bytes`, and their labels into `labels`, and verifies the
// copies.
//   found:  [count] of enum datacache_found; rows and labels are valid only where it is DATACACHE_FOUND. A record of
//           another length is DATACACHE_DAMAGED.
// Returns the number of records found.
uint64_t datacache_slab_gather(const datacache_slab* slab, const uint64_t* indices, uint64_t count, uint8_t* rows,
                               uint64_t row_bytes, int64_t* labels, uint8_t* found);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_DATACACHE_SLAB_H_
