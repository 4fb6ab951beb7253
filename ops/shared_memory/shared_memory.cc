#include "shared_memory.h"

#include <errno.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "shared_control.h"
#include "shared_inboxes.h"
#include "shared_neighbour.h"
#include "shared_watch.h"

namespace hvds {
namespace {

constexpr int64_t kPollsBeforeWarning = 600;  // a minute, like Horovod's stall check
constexpr double kBeatSeconds = 0.5;
constexpr char kSeeWhy[] = ": see its output, or, if it ended normally, give every rank the same number of batches";

// ---- A group ----

struct Pieces {
  const void* const* data;
  const int64_t* bytes;
  const int64_t* offsets;
};

class Neighbours {
 public:
  Neighbours(int members, int me) : me_(me), others_(members) {}
  ~Neighbours() { leave(); }

  // Returns 0 or an errno.
  int open(int64_t* address) {
    const int failed = memory_.make("hvd_sparse_control", sizeof(Control));
    if (failed != 0) return failed;
    if (getrandom(&own().token, sizeof own().token, 0) != sizeof own().token) return errno;
    address[0] = getpid();
    address[1] = memory_.fd();
    address[2] = static_cast<int64_t>(own().token);
    return 0;
  }

  // Returns 0 or an errno.
  int join(const int64_t* addresses) {
    std::vector<std::unique_ptr<Neighbour>> found(members());
    for (int member = 0; member < members(); ++member) {
      if (member == me_) continue;
      found[member] = std::make_unique<Neighbour>();
      const int failed = found[member]->find(addresses + 3 * member);
      if (failed != 0) return failed;
    }
    others_ = std::move(found);
    joined_ = true;
    return 0;
  }

  void watch(double patience, int32_t (*ended)()) {
    patience_ = patience;
    ended_ = ended;
  }

  void beat() {
    if (memory_.data() != nullptr) own().beats.fetch_add(1, std::memory_order_relaxed);
  }

  void leave() {
    if (memory_.data() == nullptr || own().left.exchange(1) != 0) return;
    ring(own());
    ring_others();
  }

  // Returns the inbox with all pieces in it, or NULL with the reason.
  std::shared_ptr<Inbox> exchange(const std::string& channel, const Pieces& pieces, int64_t expected,
                                  std::string* why);

  void give_back(Inbox& inbox) { inboxes_.give_back(inbox); }

 private:
  int members() const { return static_cast<int>(others_.size()); }
  Control& own() const { return *reinterpret_cast<Control*>(memory_.data()); }

  void ring_others() const {
    for (const auto& other : others_) {
      if (other != nullptr) ring(other->control());
    }
  }

  uint64_t next_exchange(const std::string& channel) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return name_exchange(channel, ++numbers_[channel]);
  }

  Slot* open_slot(uint64_t exchange, const Inbox& inbox);
  bool send(int member, Slot& slot, const Pieces& pieces, std::string* why);
  bool send_to_ready(uint64_t exchange, const Pieces& pieces, std::vector<int>& unsent, std::string* why);
  bool exchange_with_all(Slot& slot, const std::string& channel, const Pieces& pieces, std::string* why);
  std::vector<std::string> absences(bool look_closely, Watch& watch, double elapsed) const;
  std::vector<int> waited_for(const Slot& slot, const std::vector<int>& unsent) const;

  const int me_;
  bool joined_ = false;
  double patience_ = 0;
  int32_t (*ended_)() = nullptr;
  Memory memory_;
  std::vector<std::unique_ptr<Neighbour>> others_;
  Inboxes inboxes_;
  std::mutex mutex_;
  std::map<std::string, uint64_t> numbers_;
};

void warn(const std::string& channel, const std::vector<int>& waited) {
  std::string late;
  for (const int member : waited) late += (late.empty() ? "" : ", ") + std::to_string(member);
  std::fprintf(stderr, "hvd_sparse: waiting for local rank %s in %s.\n", late.c_str(), channel.c_str());
}

void copy_piece(const Pieces& pieces, int member, char* inbox) {
  if (pieces.bytes[member] > 0) {
    std::memcpy(inbox + pieces.offsets[member], pieces.data[member], pieces.bytes[member]);
  }
}

Slot* Neighbours::open_slot(uint64_t exchange, const Inbox& inbox) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const uint32_t used = own().slots.load(std::memory_order_relaxed);
  uint32_t place = 0;
  while (place < used && own().slot[place].exchange.load(std::memory_order_acquire) != 0) ++place;
  if (place == kSlots) return nullptr;
  Slot& slot = own().slot[place];
  slot.arrived.store(uint64_t{1} << me_, std::memory_order_relaxed);
  slot.serial = inbox.serial;
  slot.bytes = inbox.memory.bytes();
  slot.fd = inbox.memory.fd();
  slot.exchange.store(exchange, std::memory_order_release);
  if (place == used) own().slots.store(used + 1, std::memory_order_release);
  return &slot;
}

std::shared_ptr<Inbox> Neighbours::exchange(const std::string& channel, const Pieces& pieces, int64_t expected,
                                            std::string* why) {
  if (!joined_) {
    *why = "the group was not joined";
    return nullptr;
  }
  int failed = 0;
  std::shared_ptr<Inbox> inbox = inboxes_.take(std::max<int64_t>(expected, 1), &failed);
  Slot* slot = inbox == nullptr ? nullptr : open_slot(next_exchange(channel), *inbox);
  bool done = false;
  if (inbox == nullptr) {
    *why = "there is no memory for " + std::to_string(expected) + " bytes: " + std::strerror(failed);
  } else if (slot == nullptr) {
    *why = "more than " + std::to_string(kSlots) + " exchanges are in flight; use larger buckets";
  } else {
    ring_others();
    copy_piece(pieces, me_, inbox->memory.data());
    done = exchange_with_all(*slot, channel, pieces, why);
    slot->exchange.store(0, std::memory_order_release);
  }
  if (done) return inbox;
  leave();  // otherwise the others would wait in vain
  return nullptr;
}

// Writes a member's piece into its inbox; returns false on failure.
bool Neighbours::send(int member, Slot& slot, const Pieces& pieces, std::string* why) {
  int failed = 0;
  const std::shared_ptr<Mapping> inbox = others_[member]->inbox(slot, &failed);
  if (inbox != nullptr && pieces.offsets[member] + pieces.bytes[member] > inbox->bytes()) failed = EMSGSIZE;
  if (failed != 0) {
    *why = "the memory of local rank " + std::to_string(member) + " cannot be used: " + std::strerror(failed);
    return false;
  }
  copy_piece(pieces, member, inbox->data());
  slot.arrived.fetch_or(uint64_t{1} << me_, std::memory_order_release);
  ring(others_[member]->control());
  return true;
}

// Sends to the members whose inboxes are open, and leaves the others in `unsent`; returns false on failure.
bool Neighbours::send_to_ready(uint64_t exchange, const Pieces& pieces, std::vector<int>& unsent, std::string* why) {
  std::vector<int> later;
  for (const int member : unsent) {
    Slot* slot = others_[member]->find_slot(exchange);
    if (slot == nullptr) {
      later.push_back(member);
    } else if (!send(member, *slot, pieces, why)) {
      return false;
    }
  }
  unsent = std::move(later);
  return true;
}

// Sends to whichever member is ready first, until this rank has sent to all and all have sent to it.
bool Neighbours::exchange_with_all(Slot& slot, const std::string& channel, const Pieces& pieces, std::string* why) {
  const uint64_t exchange = slot.exchange.load(std::memory_order_relaxed);
  std::vector<int> unsent;
  for (int step = 1; step < members(); ++step) unsent.push_back((me_ + step) % members());
  bool rang = true;
  Watch watch(members(), patience_);
  Elapsed elapsed;
  for (int64_t silent = 0;; silent += rang ? 0 : 1) {
    const uint32_t heard = own().bell.load(std::memory_order_acquire);
    // Checked before the arrivals: a member that leaves may already have sent all its pieces.
    const std::vector<std::string> absent = absences(!rang, watch, elapsed());
    if (!send_to_ready(exchange, pieces, unsent, why)) return false;
    const std::vector<int> waited = waited_for(slot, unsent);
    if (waited.empty()) return true;
    for (const int member : waited) *why = why->empty() ? absent[member] : *why;
    if (!why->empty()) return false;
    if (!rang && silent % kPollsBeforeWarning == kPollsBeforeWarning - 1) warn(channel, waited);
    rang = listen(own(), heard);
  }
}

// For each member, this one included, why nothing can be expected of it; empty if it may still send.
std::vector<std::string> Neighbours::absences(bool look_closely, Watch& watch, double elapsed) const {
  std::vector<std::string> found(members());
  const bool closed = own().left.load(std::memory_order_acquire) != 0;
  const bool ended = look_closely && ended_ != nullptr && ended_() != 0;
  for (int member = 0; member < members(); ++member) {
    if (closed) found[member] = "this rank has left; was Horovod shut down?";
    if (ended && !closed) found[member] = "Horovod has ended on this rank, as when a rank of another host is lost";
    if (closed || ended || member == me_) continue;
    const std::string name = "local rank " + std::to_string(member);
    const Neighbour& other = *others_[member];
    if (other.control().left.load(std::memory_order_acquire) != 0) found[member] = name + " has left" + kSeeWhy;
    watch.look(member, other.control().beats.load(std::memory_order_relaxed), elapsed);
    if (watch.stands_still(member)) found[member] = name + " stands still: it was stopped, or is held by a debugger";
    if (look_closely && other.ended()) found[member] = name + " has ended" + kSeeWhy;
  }
  return found;
}

std::vector<int> Neighbours::waited_for(const Slot& slot, const std::vector<int>& unsent) const {
  const uint64_t arrived = slot.arrived.load(std::memory_order_acquire);
  std::vector<int> members_waited_for;
  for (int member = 0; member < members(); ++member) {
    const bool sent_to = std::find(unsent.begin(), unsent.end(), member) == unsent.end();
    if (!sent_to || (arrived & uint64_t{1} << member) == 0) members_waited_for.push_back(member);
  }
  return members_waited_for;
}

// ---- The groups of this process ----

std::mutex groups_mutex;

// Never destroyed: waiting threads may outlive main.
std::map<int64_t, std::shared_ptr<Neighbours>>& groups() {
  static auto* all = new std::map<int64_t, std::shared_ptr<Neighbours>>;
  return *all;
}

std::shared_ptr<Neighbours> find_group(int64_t number) {
  const std::lock_guard<std::mutex> lock(groups_mutex);
  const auto found = groups().find(number);
  return found == groups().end() ? nullptr : found->second;
}

// Shows the others that this process runs, from the first call until it ends.
void start_beating() {
  static std::once_flag started;
  std::call_once(started, [] {
    std::thread([] {
      for (;;) {
        {
          const std::lock_guard<std::mutex> lock(groups_mutex);
          for (const auto& [number, group] : groups()) group->beat();
        }
        std::this_thread::sleep_for(std::chrono::duration<double>(kBeatSeconds));
      }
    }).detach();
  });
}

}  // namespace
}  // namespace hvds

struct hvds_received {
  std::shared_ptr<hvds::Neighbours> group;
  std::shared_ptr<hvds::Inbox> inbox;
};

extern "C" int64_t hvds_neighbours_open(int32_t members, int32_t me, int64_t* address) {
  if (members < 1 || members > HVDS_MAX_NEIGHBOURS || me < 0 || me >= members) return -EINVAL;
  auto group = std::make_shared<hvds::Neighbours>(members, me);
  const int failed = group->open(address);
  if (failed != 0) return -failed;
  static int64_t opened = 0;
  const std::lock_guard<std::mutex> lock(hvds::groups_mutex);
  hvds::groups()[++opened] = std::move(group);
  return opened;
}

extern "C" int32_t hvds_neighbours_join(int64_t group, const int64_t* addresses) {
  const auto found = hvds::find_group(group);
  if (found == nullptr) return EINVAL;
  const int failed = found->join(addresses);
  if (failed == 0) hvds::start_beating();
  return failed;
}

extern "C" int32_t hvds_neighbours_watch(int64_t group, double patience, int32_t (*ended)(void)) {
  const auto found = hvds::find_group(group);
  if (found == nullptr || !std::isfinite(patience) || patience < 0) return EINVAL;
  found->watch(patience, ended);
  return 0;
}

extern "C" void hvds_neighbours_close(int64_t group) {
  const auto found = hvds::find_group(group);
  if (found == nullptr) return;
  found->leave();
  const std::lock_guard<std::mutex> lock(hvds::groups_mutex);
  hvds::groups().erase(group);
}

extern "C" hvds_received* hvds_exchange(int64_t group, const char* channel, const void* const* pieces,
                                        const int64_t* bytes, const int64_t* offsets, int64_t expected,
                                        char* message) {
  const auto found = hvds::find_group(group);
  std::string why = found == nullptr ? "the group was closed; was Horovod shut down?" : "";
  const auto inbox =
      found == nullptr ? nullptr : found->exchange(channel, hvds::Pieces{pieces, bytes, offsets}, expected, &why);
  if (inbox != nullptr) return new hvds_received{found, inbox};
  std::snprintf(message, 256, "%s", why.c_str());
  return nullptr;
}

extern "C" void* hvds_received_data(const hvds_received* received) { return received->inbox->memory.data(); }

extern "C" void hvds_received_release(hvds_received* received) {
  received->group->give_back(*received->inbox);
  delete received;
}
