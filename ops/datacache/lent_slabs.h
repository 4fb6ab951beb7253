// Slabs that TensorFlow's ops may read. Ops refer to a slab by number, so that a graph that outlives it, or comes from
// elsewhere, gets an error instead of reading freed memory.
#ifndef HVD_SPARSE_OPS_DATACACHE_LENT_SLABS_H_
#define HVD_SPARSE_OPS_DATACACHE_LENT_SLABS_H_

#include <stdint.h>

#include "slab.h"

#ifdef __cplusplus
extern "C" {
#endif

// Lends a mapped slab; returns its number, which is never reused. The slab must stay mapped until it is taken back.
int64_t datacache_lend(const datacache_slab* slab);

// Waits for current readers; afterwards the slab can no longer be borrowed. Does nothing if it was taken back before.
void datacache_take_back(int64_t number);

// Copies the slab's location to `slab` and returns 1, or returns 0 if it has been taken back or never existed. After a
// 1, the caller must call datacache_give_back with the number of samples served.
int datacache_borrow(int64_t number, datacache_slab* slab);
void datacache_give_back(int64_t number, uint64_t samples);

// The number of samples served; still available after the slab has been taken back.
uint64_t datacache_served(int64_t number);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_DATACACHE_LENT_SLABS_H_
