#include "lent_slabs.h"

#include <condition_variable>
#include <deque>
#include <mutex>

namespace {

struct Lent {
  datacache_slab slab;
  uint64_t borrowers = 0, served = 0;
  bool taken_back = false;
};

struct Register {
  std::mutex mutex;
  std::condition_variable returned;
  std::deque<Lent> lent;  // by number

  // nullptr for a number that was never given out.
  Lent* find(int64_t number) {
    return number >= 0 && static_cast<uint64_t>(number) < lent.size() ? &lent[number] : nullptr;
  }
};

Register& all() {
  static auto* instance = new Register;  // never destroyed, as threads may read until the process ends
  return *instance;
}

}  // namespace

extern "C" {

int64_t datacache_lend(const datacache_slab* slab) {
  const std::lock_guard<std::mutex> lock(all().mutex);
  all().lent.push_back(Lent{*slab});
  return static_cast<int64_t>(all().lent.size()) - 1;
}

void datacache_take_back(int64_t number) {
  std::unique_lock<std::mutex> lock(all().mutex);
  Lent* lent = all().find(number);
  if (lent == nullptr) return;
  lent->taken_back = true;
  all().returned.wait(lock, [lent] { return lent->borrowers == 0; });
}

int datacache_borrow(int64_t number, datacache_slab* slab) {
  const std::lock_guard<std::mutex> lock(all().mutex);
  Lent* lent = all().find(number);
  if (lent == nullptr || lent->taken_back) return 0;
  ++lent->borrowers;
  *slab = lent->slab;
  return 1;
}

void datacache_give_back(int64_t number, uint64_t samples) {
  const std::lock_guard<std::mutex> lock(all().mutex);
  Lent* lent = all().find(number);
  lent->served += samples;
  if (--lent->borrowers == 0) all().returned.notify_all();
}

uint64_t datacache_served(int64_t number) {
  const std::lock_guard<std::mutex> lock(all().mutex);
  const Lent* lent = all().find(number);
  return lent == nullptr ? 0 : lent->served;
}

}  // extern "C"
