// What the ranks of one host see of each other: the exchanges that each has open, and a bell.
#ifndef HVD_SPARSE_OPS_SHARED_CONTROL_H_
#define HVD_SPARSE_OPS_SHARED_CONTROL_H_

#include <errno.h>
#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>

namespace hvds {

constexpr int64_t kSlots = 2048;  // exchanges in flight in one process
constexpr int64_t kPollNanoseconds = 100'000'000;

// An exchange in flight and its inbox. The owner opens it, and each sender sets its bit once its piece is there.
struct Slot {
  std::atomic<uint64_t> exchange;  // its name; 0: free. The other fields are valid from then on until all have sent.
  std::atomic<uint64_t> arrived;
  uint64_t serial;  // of the inbox, unique in its process
  int64_t bytes;
  int32_t fd;
};

struct Control {
  uint64_t token;
  std::atomic<uint32_t> left;
  std::atomic<uint32_t> bell;   // rung when something has changed that the owner may be waiting for
  std::atomic<uint32_t> slots;  // slots from this one on were never used
  std::atomic<uint64_t> beats;  // of a thread of the owner, as long as its process runs
  Slot slot[kSlots];
};

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

inline void ring(Control& control) {
  control.bell.fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, &control.bell, FUTEX_WAKE, 1 << 30, nullptr, nullptr, 0);
}

// Waits until the bell has rung since it was at `heard`; returns false on a timeout.
inline bool listen(Control& control, uint32_t heard) {
  const timespec limit{0, kPollNanoseconds};
  return syscall(SYS_futex, &control.bell, FUTEX_WAIT, heard, &limit, nullptr, 0) == 0 || errno != ETIMEDOUT;
}

// Names an exchange: all members count the exchanges of a channel in the same way.
inline uint64_t name_exchange(const std::string& channel, uint64_t number) {
  uint64_t hash = 1469598103934665603u;  // FNV-1a
  const auto add = [&](unsigned char byte) { hash = (hash ^ byte) * 1099511628211u; };
  for (const unsigned char letter : channel) add(letter);
  for (int shift = 0; shift < 64; shift += 8) add(static_cast<unsigned char>(number >> shift));
  return std::max<uint64_t>(hash, 1);
}

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_SHARED_CONTROL_H_
