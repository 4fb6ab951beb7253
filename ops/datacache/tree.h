// Whether the file of an LMDB environment (format 1, version 0.9) may be mapped and used, which LMDB itself takes on
// trust: it follows page numbers and offsets of a damaged file out of the file or its pages.
//
// The file is read, not mapped, by a process that keeps all others from changing it. Payloads on pages of their own are
// not read: what a record holds has a checksum, which is for who reads it.
#ifndef HVD_SPARSE_OPS_DATACACHE_TREE_H_
#define HVD_SPARSE_OPS_DATACACHE_TREE_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Follows both trees and the list of free pages from the newer meta page on.
// Returns nullptr where all is as LMDB writes it, and otherwise what is not.
const char* datacache_tree_check(int file, uint64_t page_bytes);

// Makes the pages of their own that the value of a key lies on, if it does, say so themselves: LMDB frees as many pages
// as they say, whosever they are and whatever the tree says. The tree must be sound, and the file open for writing.
// Returns nullptr where the value may be removed, or is not there, and otherwise why not.
const char* datacache_tree_mend_value(int file, uint64_t page_bytes, const uint8_t* key, uint64_t key_bytes);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_DATACACHE_TREE_H_
