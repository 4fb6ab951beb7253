// Checks whether the file of an LMDB environment (format 1, version 0.9) is safe to map and use. LMDB itself does not:
// in a damaged file it follows page numbers and offsets that lead outside the file or the page.
//
// The file is read, not mapped, by a process that keeps all others from changing it. Overflow pages, which hold large
// payloads, are not read: the reader of a record verifies its checksum.
#ifndef HVD_SPARSE_OPS_DATACACHE_TREE_H_
#define HVD_SPARSE_OPS_DATACACHE_TREE_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Follows both trees and the list of free pages, starting from the newer meta page.
// Returns nullptr if everything is as LMDB writes it, and otherwise a description of the first fault.
const char* datacache_tree_check(int file, uint64_t page_bytes);

// Repairs the page count in the header of the overflow pages that hold the value of a key, if it has any: LMDB frees as
// many pages as the header says, no matter whose they are and what the tree says. The tree must be sound, and the file
// open for writing.
// Returns nullptr if the value may be removed or does not exist, and otherwise the reason why not.
const char* datacache_tree_mend_value(int file, uint64_t page_bytes, const uint8_t* key, uint64_t key_bytes);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_DATACACHE_TREE_H_
