// Memory in pages of 2 MB in place of 4 KB, so that passes over it need fewer translations of addresses.
#ifndef HVD_SPARSE_OPS_LARGE_PAGES_H_
#define HVD_SPARSE_OPS_LARGE_PAGES_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // since Linux 6.1
#endif

namespace hvds {

constexpr uintptr_t kLargePage = uintptr_t{2} << 20;

// Advises the kernel about the large pages that lie wholly within this memory, if there are any.
inline void advise_large_pages(void* data, size_t bytes, int advice) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data), end = begin + bytes;
  const uintptr_t first = (begin + kLargePage - 1) / kLargePage * kLargePage, last = end / kLargePage * kLargePage;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, advice);
}

// Asks for large pages where memory is touched for the first time. The kernel may not have any; nothing else changes.
inline void prefer_large_pages(void* data, size_t bytes) { advise_large_pages(data, bytes, MADV_HUGEPAGE); }

// Also moves what has been touched into large pages; the contents stay. Older kernels do that later, or never.
inline void move_to_large_pages(void* data, size_t bytes) {
  prefer_large_pages(data, bytes);
  advise_large_pages(data, bytes, MADV_COLLAPSE);
}

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_LARGE_PAGES_H_
