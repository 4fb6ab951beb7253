// Another rank of the host, as this process sees it: its memory, and whether its process has ended.
#ifndef HVD_SPARSE_OPS_SHARED_NEIGHBOUR_H_
#define HVD_SPARSE_OPS_SHARED_NEIGHBOUR_H_

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "shared_control.h"
#include "shared_inboxes.h"

namespace hvds {

// Maps memory of another process, given its descriptor number there. Returns 0 or an errno.
inline int map_of_process(int64_t process, int32_t fd, int64_t bytes, Mapping& mapping) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%lld/fd/%d", static_cast<long long>(process), fd);
  const int opened = open(path, O_RDWR | O_CLOEXEC);
  if (opened < 0) return errno;
  struct stat status;
  const int failed = fstat(opened, &status) != 0 ? errno : status.st_size < bytes ? EINVAL : mapping.map(opened, bytes);
  close(opened);
  return failed;
}

class Neighbour {
 public:
  ~Neighbour() {
    if (process_fd_ >= 0) close(process_fd_);
  }

  // Returns 0 or an errno.
  int find(const int64_t* address) {
    process_ = address[0];
    const int failed = map_of_process(process_, static_cast<int32_t>(address[1]), sizeof(Control), control_);
    if (failed != 0) return failed;
    if (control().token != static_cast<uint64_t>(address[2])) return ESRCH;
    process_fd_ = static_cast<int>(syscall(SYS_pidfd_open, process_, 0));
    return process_fd_ >= 0 || errno == ENOSYS ? 0 : errno;
  }

  Control& control() const { return *reinterpret_cast<Control*>(control_.data()); }

  bool ended() const {
    if (process_fd_ < 0) return kill(static_cast<pid_t>(process_), 0) != 0 && errno == ESRCH;
    pollfd readable{process_fd_, POLLIN, 0};
    return poll(&readable, 1, 0) > 0;
  }

  // The slot of an exchange, once it is open.
  Slot* find_slot(uint64_t exchange) const {
    const uint32_t used = control().slots.load(std::memory_order_acquire);
    for (uint32_t i = 0; i < used; ++i) {
      Slot& slot = control().slot[i];
      if (slot.exchange.load(std::memory_order_acquire) == exchange) return &slot;
    }
    return nullptr;
  }

  // The slot's inbox, mapped here; NULL, with an errno in `failed`, if that is impossible.
  std::shared_ptr<Mapping> inbox(const Slot& slot, int* failed) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++looked_up_;
    Known& known = inboxes_[slot.serial];
    known.last_used = looked_up_;
    if (known.mapping == nullptr) {
      auto mapping = std::make_shared<Mapping>();
      *failed = map_of_process(process_, slot.fd, slot.bytes, *mapping);
      if (*failed != 0) return nullptr;
      known.mapping = std::move(mapping);
      forget_unused();
    }
    return known.mapping;
  }

 private:
  struct Known {
    std::shared_ptr<Mapping> mapping;
    int64_t last_used = 0;
  };

  void forget_unused() {
    for (auto each = inboxes_.begin(); each != inboxes_.end();) {
      each = each->second.last_used + kForgetAfter < looked_up_ ? inboxes_.erase(each) : std::next(each);
    }
  }

  int64_t process_ = 0;
  int process_fd_ = -1;
  Mapping control_;
  std::mutex mutex_;
  std::map<uint64_t, Known> inboxes_;
  int64_t looked_up_ = 0;
};

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_SHARED_NEIGHBOUR_H_
