// Memory that other processes can map, and reusable inboxes made of it.
#ifndef HVD_SPARSE_OPS_SHARED_INBOXES_H_
#define HVD_SPARSE_OPS_SHARED_INBOXES_H_

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

namespace hvds {

constexpr int64_t kForgetAfter = 1000;  // exchanges after which unused memory is freed

class Mapping {
 public:
  Mapping() = default;
  ~Mapping() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // Returns 0 or an errno.
  int map(int fd, int64_t bytes) {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) return errno;
    madvise(data, bytes, MADV_HUGEPAGE);
    data_ = data;
    bytes_ = bytes;
    return 0;
  }

  char* data() const { return static_cast<char*>(data_); }
  int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Anonymous memory that other processes can open as long as this process holds it.
class Memory {
 public:
  ~Memory() {
    if (fd_ >= 0) close(fd_);
  }

  // Returns 0 or an errno.
  int make(const char* name, int64_t bytes) {
    fd_ = memfd_create(name, MFD_CLOEXEC);
    if (fd_ < 0) return errno;
    // Reserved at once: running out of memory later would raise SIGBUS.
    const int missing = posix_fallocate(fd_, 0, bytes);
    return missing != 0 ? missing : mapping_.map(fd_, bytes);
  }

  int fd() const { return fd_; }
  char* data() const { return mapping_.data(); }
  int64_t bytes() const { return mapping_.bytes(); }

 private:
  int fd_ = -1;
  Mapping mapping_;
};

struct Inbox {
  Memory memory;
  uint64_t serial = 0;
  int64_t last_used = 0;
  bool in_use = false;
};

class Inboxes {
 public:
  // The smallest free inbox that is large enough, or a new one; NULL, with an errno in `failed`, if there is no memory.
  std::shared_ptr<Inbox> take(int64_t bytes, int* failed) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++taken_;
    std::shared_ptr<Inbox> found;
    for (const std::shared_ptr<Inbox>& each : all_) {
      const bool fits = !each->in_use && each->memory.bytes() >= bytes;
      if (fits && (found == nullptr || each->memory.bytes() < found->memory.bytes())) found = each;
    }
    if (found == nullptr) {
      forget_unused();
      found = std::make_shared<Inbox>();
      *failed = found->memory.make("hvd_sparse_inbox", bytes);
      if (*failed != 0) return nullptr;
      found->serial = ++made_;
      all_.push_back(found);
    }
    found->in_use = true;
    found->last_used = taken_;
    return found;
  }

  void give_back(Inbox& inbox) {
    const std::lock_guard<std::mutex> lock(mutex_);
    inbox.in_use = false;
  }

 private:
  void forget_unused() {
    const auto unused = [&](const std::shared_ptr<Inbox>& each) {
      return !each->in_use && each->last_used + kForgetAfter < taken_;
    };
    all_.erase(std::remove_if(all_.begin(), all_.end(), unused), all_.end());
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<Inbox>> all_;
  int64_t taken_ = 0;
  uint64_t made_ = 0;
};

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_SHARED_INBOXES_H_
