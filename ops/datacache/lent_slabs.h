// Slabs that TensorFlow's operations may read: known to them by number, so that a graph that outlives a slab, or comes
// from elsewhere, meets an error and not memory that is gone.
#ifndef HVD_SPARSE_OPS_DATACACHE_LENT_SLABS_H_
#define HVD_SPARSE_OPS_DATACACHE_LENT_SLABS_H_

#include <stdint.h>

#include "slab.h"

#ifdef __cplusplus
extern "C" {
#endif

// Lends a mapped slab; returns its number, which is never used again. It must stay mapped until it is taken back.
int64_t datacache_lend(const datacache_slab* slab);

// Waits for those who are reading; afterwards nobody can borrow it any more. Does nothing where that is so already.
void datacache_take_back(int64_t number);

// Copies where a slab is to `slab` and returns 1, or 0 where it has been taken back or never was; 1 must be followed by
// datacache_give_back, with how many samples were served.
int datacache_borrow(int64_t number, datacache_slab* slab);
void datacache_give_back(int64_t number, uint64_t samples);

// How many samples have been served, also after the slab was taken back.
uint64_t datacache_served(int64_t number);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_DATACACHE_LENT_SLABS_H_
