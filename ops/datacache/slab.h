// The memory level: records in a stretch of memory that all processes of a node have mapped.
//
// Layout: a head of 4096 bytes (by its owner, but for the word at `kNext`), an entry for each slot, then payloads, each at a
// multiple of 64 bytes. A record is written once; whoever writes holds the lock of its slot, which is the caller's to
// arrange; readers hold nothing. Nothing that is read from the memory is trusted: it may have been damaged.
#ifndef HVD_SPARSE_OPS_DATACACHE_SLAB_H_
#define HVD_SPARSE_OPS_DATACACHE_SLAB_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Where the memory is mapped. `first` is the index of the sample in slot 0.
typedef struct datacache_slab {
  uint8_t* base;
  uint64_t bytes;  // in all, at least datacache_slab_overhead(slots)
  uint64_t first;
  uint64_t slots;
} datacache_slab;

enum datacache_found {
  DATACACHE_MISSING = 0,
  DATACACHE_FOUND = 1,
  DATACACHE_DAMAGED = 2,  // its checksum, or its place, is wrong
};

#define DATACACHE_NONE UINT64_MAX

// Bytes of head and entries, up to the first payload.
uint64_t datacache_slab_overhead(uint64_t slots);

// Bytes that a payload takes up.
uint64_t datacache_slab_footprint(uint64_t length);

// Makes zeroed memory an empty slab.
void datacache_slab_format(const datacache_slab* slab);

// Bytes up to the end of the last payload, head and entries included.
uint64_t datacache_slab_used(const datacache_slab* slab);

// Writes a record and then, with release semantics, publishes it. The caller holds the lock of the sample's slot.
// Returns 1 when the record is there (it may have been already), 0 where it does not fit, -1 for a sample without a slot.
int datacache_slab_publish(const datacache_slab* slab, uint64_t index, const void* payload, uint64_t length,
                           int64_t label);

// The lengths, unchecked, of the records of `count` samples; DATACACHE_NONE where none is published.
void datacache_slab_lengths(const datacache_slab* slab, const uint64_t* indices, uint64_t count, uint64_t* lengths);

// Takes a record out, so that it can be published again elsewhere; its place is not used again. The caller holds the
// lock of the sample's slot.
void datacache_slab_forget(const datacache_slab* slab, uint64_t index);

// Copies the records of `count` samples into rows of `row_bytes` and their labels beside, and checks what it has copied.
//   found:  [count] of enum datacache_found; rows and labels are of use only where it is DATACACHE_FOUND. A record of
//           another length is DATACACHE_DAMAGED.
// Returns how many were found.
uint64_t datacache_slab_gather(const datacache_slab* slab, const uint64_t* indices, uint64_t count, uint8_t* rows,
                               uint64_t row_bytes, int64_t* labels, uint8_t* found);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_DATACACHE_SLAB_H_
