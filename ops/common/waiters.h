// Threads for ops that wait for other processes.
#ifndef HVD_SPARSE_OPS_WAITERS_H_
#define HVD_SPARSE_OPS_WAITERS_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace hvds {

// Threads that may wait for other processes. TensorFlow's own must not: two ranks may begin their exchanges in
// different orders, and the threads that wait for one exchange could be those that another needs.
class Waiters {
 public:
  static Waiters& instance() {
    static auto* all = new Waiters;  // never destroyed, as threads may wait until the process ends
    return *all;
  }

  void run(std::function<void()> work) {
    const std::lock_guard<std::mutex> lock(mutex_);
    work_.push_back(std::move(work));
    if (idle_ >= work_.size()) {
      ready_.notify_one();
    } else {
      std::thread([this] { serve(); }).detach();
    }
  }

 private:
  void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      ++idle_;
      ready_.wait(lock, [this] { return !work_.empty(); });
      --idle_;
      const std::function<void()> work = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      work();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> work_;
  size_t idle_ = 0;
};

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_WAITERS_H_
