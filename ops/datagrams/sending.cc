// The caller's thread: a round from beginning to end, and what is sent in it.
#include <errno.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>

#include "../common/float_mode.h"
#include "endpoint.h"

namespace hvds {
namespace {

constexpr int64_t kHeaders = 42;     // bytes of the Ethernet, IP and UDP headers of a datagram
constexpr int64_t kRunBytes = 64'000;  // of datagrams sent at once
constexpr int64_t kWorthTiming = 1 << 20;  // bytes

}  // namespace

Endpoint::Endpoint(const hvds_datagrams_settings& settings)
    : settings_(settings),
      layout_{settings.size, settings.ranks, (settings.datagram - kFrame) / int64_t{4}, settings.rotate != 0},
      pacer_(settings.rate > 0 ? settings.rate : std::numeric_limits<double>::infinity()),
      peers_(settings.ranks),
      inbox_(layout_, settings.me),
      limits_(settings),
      last_contributors_(inbox_.most_segments()),
      last_came_(settings.ranks * inbox_.most_segments()),
      achieved_(std::numeric_limits<double>::infinity()),
      run_(kRunBytes + settings.datagram),
      spread_(settings.spread != 0 ? allocate(settings.size) : nullptr) {
  inbox_.reset(0);
}

int Endpoint::join(const std::vector<Address>& addresses, const uint32_t* starts, const uint8_t* key) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (joined_) return EALREADY;
  if (!inbox_.has_memory() || (settings_.spread != 0 && spread_ == nullptr)) return ENOMEM;
  std::memcpy(master_.bytes, key, sizeof master_.bytes);
  const Key job = derive(master_, 0, 0, 0, 0);  // no rank sends to itself, so this key belongs to no direction
  std::memcpy(&job_, job.bytes, sizeof job_);
  for (int64_t rank = 0; rank < ranks(); ++rank) {
    if (rank == me()) continue;
    peer(rank).address = addresses[rank];
    learn_start(rank, starts[rank]);
  }
  joined_ = true;
  listener_ = std::thread([this] { listen(); });
  return 0;
}

int64_t Endpoint::average(const float* vector, bool gives, int64_t round, float* mean, int64_t* counts,
                          std::string* why) {
  const StandardFloats standard;
  Lock lock(mutex_);
  if (!joined_ || closing_) {
    *why = "the channel is closed";
    return -ECANCELED;
  }
  if (busy_) {
    *why = "another average of the same channel has not ended: let one call end before the next";
    return -EBUSY;
  }
  busy_ = true;
  enter(vector, gives, round, mean);
  if (wait_for_others(lock)) {
    if (spread_ != nullptr) spread_vector(lock);
    begin();
    lock.unlock();
    socket_.wake();
    scatter();
    say_sent(kScatterSent);
    gather();
    say_sent(kGatherSent);
    socket_.wake();
    lock.lock();
    changed_.wait(lock, [this] { return stage_ == kOver || closing_; });
  }
  const int64_t averaged = inbox_.round();
  const bool ended = stage_ == kOver;
  conclude(counts);
  if (ended && spread_ != nullptr) {
    lock.unlock();
    gather_up(averaged, mean);
    lock.lock();
  }
  busy_ = false;
  changed_.notify_all();
  if (unfit_ != 0) {
    *why = "datagrams of " + std::to_string(settings_.datagram) +
           " bytes do not fit the interface: pass the mtu of the narrowest link between the ranks";
    return -EMSGSIZE;
  }
  if (ended) return averaged;
  *why = closing_ ? "the channel was closed" : "no other rank takes part";
  return closing_ ? -ECANCELED : -ETIMEDOUT;
}

// ---- Beginning a round ----

void Endpoint::enter(const float* vector, bool gives, int64_t round, float* mean) {
  if (round > inbox_.round()) inbox_.reset(round);
  vector_ = vector;
  gives_ = gives;
  mean_ = mean;
  stage_ = kWaiting;
  flags_ = gives ? kInRound : kInRound | kEmpty;
  begun_ = now();
}

bool Endpoint::all_have_come() {
  for (int64_t rank = 0; rank < ranks(); ++rank) {
    if (rank != me() && !peer(rank).silent && !peer(rank).in_round(inbox_.round())) return false;
  }
  return true;
}

bool Endpoint::nobody_has_come() {
  return std::none_of(peers_.begin(), peers_.end(), [this](const Peer& each) { return each.in_round(inbox_.round()); });
}

// Waits until all are in the same round, the latest that any of them is in; ranks that do not arrive are silent from
// then on. Returns false if the endpoint is closed, or if this rank contributes nothing and nobody else is there.
bool Endpoint::wait_for_others(Lock& lock) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::duration<double>(settings_.patience);
  const auto until = std::chrono::time_point_cast<std::chrono::steady_clock::duration>(limit);
  int64_t told = -1;
  while (!closing_) {
    for (const Peer& each : peers_) {
      if (each.round > inbox_.round()) inbox_.reset(each.round);
    }
    if (told != inbox_.round()) {
      told = inbox_.round();
      send_states();
      socket_.wake();  // the listening thread repeats the state from now on
    }
    if (all_have_come() && (gives_ || !nobody_has_come())) return true;
    if (changed_.wait_until(lock, until) == std::cv_status::timeout) {
      for (int64_t rank = 0; rank < ranks(); ++rank) {
        if (rank != me() && !peer(rank).in_round(inbox_.round())) peer(rank).silent = true;
      }
      if (!gives_ && nobody_has_come()) return false;
    }
  }
  return false;
}

void Endpoint::begin() {
  expected_ = giving_ = 0;
  for (int64_t rank = 0; rank < ranks(); ++rank) {
    const bool here = rank != me() && peer(rank).in_round(inbox_.round());
    if (here) expected_ |= uint64_t{1} << rank;
    if (here && (peer(rank).flags & kEmpty) == 0) giving_ |= uint64_t{1} << rank;
    peer(rank).served.store(here, std::memory_order_relaxed);
  }
  time_ = now();
  report_.waited = static_cast<double>(time_ - begun_) / kSecond;
  begun_ = time_;
  const int64_t bytes = (ranks() - 1) * layout_.most_segments() * (settings_.datagram + kHeaders);
  const double rate = common_rate();
  const Nanoseconds limits[2] = {limits_.of(0, bytes, rate), limits_.of(1, bytes, rate)};
  // The others' reduce-scatter may last up to its limit, so time that this rank does not need for it is left for the
  // next phase.
  scatter_deadline_ = begun_ + limits[0];
  gather_deadline_ = scatter_deadline_ + limits[1];
  report_.scatter_limit = static_cast<double>(limits[0]) / kSecond;
  stage_ = kScatter;
  for (int64_t number = 0; number < inbox_.segments(); ++number) {
    if (inbox_.has_all(number)) inbox_.finish(number, given(), mean_);
  }
  look_at_phases();
}

double Endpoint::advertised_rate() const { return std::min(pacer_.rate(), achieved_.load()); }

// The rate of the slowest rank that takes part.
double Endpoint::common_rate() {
  double rate = advertised_rate();
  for (int64_t rank = 0; rank < ranks(); ++rank) {
    if ((expected_ >> rank & 1) != 0 && peer(rank).rate > 0) rate = std::min(rate, peer(rank).rate);
  }
  return rate;
}

// ---- Sending ----

// The number of datagrams sent to a rank at once.
int64_t Endpoint::run_length() const {
  const int64_t most = std::min(kMostRun, kRunBytes / settings_.datagram);
  return std::clamp<int64_t>(pacer_.burst() / settings_.datagram, 1, std::max<int64_t>(most, 1));
}

// Sends a run to each other rank in turn, each rank starting with its successor, so that no receiver gets all at once.
void Endpoint::scatter() {
  const Nanoseconds start = now();
  int64_t bytes = 0;
  int64_t length = run_length();
  bool in_time = gives_;
  for (int64_t first = 0; in_time && first < layout_.most_segments(); first += length, length = run_length()) {
    for (int64_t step = 1; in_time && step < ranks(); ++step) {
      const int64_t rank = (me() + step) % ranks();
      const int64_t left = layout_.segments_of(layout_.block_of(rank, inbox_.round())) - first;
      bytes += send_run(rank, kContribution, first, std::min(length, left));
      in_time = !out_of_time(scatter_deadline_);
    }
  }
  if (bytes >= kWorthTiming) achieved_ = 8e9 * static_cast<double>(bytes) / static_cast<double>(now() - start);
}

// Sends means in the order in which they were computed, as many at once as possible: singly they would cost this thread
// a wake-up and a system call per datagram.
void Endpoint::gather() {
  for (int64_t first = 0, length = run_length(); wait_for_means(first, length); length = run_length()) {
    const int64_t count = std::min(inbox_.finished_count() - first, length);
    for (int64_t step = 1; step < ranks(); ++step) {
      if (out_of_time(gather_deadline_)) return;
      send_run((me() + step) % ranks(), kMean, first, count);
    }
    if (out_of_time(gather_deadline_)) return;
    first += count;
  }
}

// Waits until there are `wanted` more means, or no others will come; returns false if there is none.
bool Endpoint::wait_for_means(int64_t place, int64_t wanted) {
  const auto there = [&] { return inbox_.finished_count() - place; };
  if (there() >= wanted) return true;
  Lock lock(mutex_);
  changed_.wait(lock, [&] { return closing_ || has_averaged() || there() >= wanted; });
  return there() > 0;
}

// Returns the bytes sent, including all headers.
int64_t Endpoint::send_run(int64_t rank, Kind kind, int64_t first, int64_t count) {
  const Nanoseconds deadline = kind == kContribution ? scatter_deadline_ : gather_deadline_;
  int64_t bytes = 0;
  while (count > 0 && peer(rank).served.load(std::memory_order_relaxed)) {
    const Run run = run_from(kind, rank, first, count);
    const Nanoseconds time = now();
    const Nanoseconds when = pacer_.take(run.count * (run.bytes + kHeaders), time);
    if (when > time) sleep_until(std::min(when, deadline));
    seal(run);  // only now, as counters must be sent in ascending order
    const int failed = socket_.send(peer(rank).address, run_.data(), run.bytes, run.count * run.bytes, deadline);
    if (failed != 0) unfit_ = failed;
    sent_.fetch_add(run.count, std::memory_order_relaxed);
    bytes += run.count * (run.bytes + kHeaders);
    first += run.count;
    count -= run.count;
  }
  return bytes;
}

int64_t Endpoint::number_at(Kind kind, int64_t place) const {
  return kind == kContribution ? place : inbox_.finished_at(place);
}

// As many datagrams as have equal length: a block's last segment may be shorter.
Endpoint::Run Endpoint::run_from(Kind kind, int64_t rank, int64_t first, int64_t count) const {
  const int64_t block = kind == kContribution ? layout_.block_of(rank, inbox_.round()) : inbox_.block();
  const int64_t elements = layout_.elements_of(block, number_at(kind, first));
  int64_t alike = 1;
  while (alike < count && layout_.elements_of(block, number_at(kind, first + alike)) == elements) ++alike;
  return {kind, rank, block, first, alike, elements, kFrame + elements * int64_t{sizeof(float)}};
}

// Writes datagrams one after the other.
void Endpoint::seal(const Run& run) {
  Peer& to = peer(run.rank);
  Header header = header_for(run.rank, run.kind);
  header.flags = kInRound;
  header.block = static_cast<uint16_t>(run.block);
  header.elements = static_cast<uint16_t>(run.elements);
  Key key;
  {
    const std::lock_guard<std::mutex> lock(ways_);
    key = to.out;
    header.receiver_start = to.start;
  }
  const float* values = (run.kind == kContribution ? vector_ : mean_) + layout_.start_of(run.block);
  uint8_t* at = run_.data();
  for (int64_t i = 0; i < run.count; ++i, at += run.bytes) {
    header.offset = static_cast<uint32_t>(number_at(run.kind, run.first + i) * layout_.segment);
    header.counter = to.counter.fetch_add(1, std::memory_order_relaxed) + 1;
    std::memcpy(at, &header, sizeof header);
    std::memcpy(at + sizeof header, values + header.offset, run.elements * sizeof(float));
  }
  uint8_t tags[HVDS_LANES][HVDS_TAG_BYTES];
  for (int64_t done = 0; done < run.count; done += HVDS_LANES) {
    const int64_t group = std::min<int64_t>(HVDS_LANES, run.count - done);
    uint8_t* start = run_.data() + done * run.bytes;
    const uint8_t *keys[HVDS_LANES], *messages[HVDS_LANES];
    for (int64_t i = 0; i < group; ++i) {
      keys[i] = key.bytes;
      messages[i] = start + i * run.bytes;
    }
    hvds_siphash_many(keys, messages, group, run.bytes - HVDS_TAG_BYTES, tags[0]);
    for (int64_t i = 0; i < group; ++i) {
      std::memcpy(start + (i + 1) * run.bytes - HVDS_TAG_BYTES, tags[i], HVDS_TAG_BYTES);
    }
  }
}

Header Endpoint::header_for(int64_t rank, Kind kind) const {
  Header header{};
  header.magic = kMagic;
  header.kind = kind;
  header.job = job_;
  header.sender = static_cast<uint16_t>(me());
  header.receiver = static_cast<uint16_t>(rank);
  header.sender_start = settings_.start;
  header.round = static_cast<uint32_t>(inbox_.round());
  return header;
}

void Endpoint::say_sent(Flag flag) {
  const std::lock_guard<std::mutex> lock(mutex_);
  flags_ |= flag;
  send_states();
}

// ---- Ending a round ----

void Endpoint::conclude(int64_t* counts) {
  const int64_t round = inbox_.round();
  for (int64_t rank = 0; rank < ranks(); ++rank) {
    const bool expected[2] = {(giving_ >> rank & 1) != 0, (expected_ >> rank & 1) != 0};
    const int64_t due[2] = {rank == me() ? 0 : inbox_.segments(), layout_.segments_of(layout_.block_of(rank, round))};
    const int64_t came[2] = {inbox_.scattered(rank), inbox_.gathered(rank)};
    for (int phase = 0; phase < 2; ++phase) {
      // Something may have arrived from a rank that came too late to be waited for.
      counts[2 * phase * ranks() + rank] = expected[phase] || came[phase] > 0 ? due[phase] : 0;
      counts[(2 * phase + 1) * ranks() + rank] = came[phase];
    }
  }
  if (stage_ == kOver) {
    for (int64_t number = 0; number < inbox_.segments(); ++number) inbox_.finish(number, given(), mean_);
    inbox_.keep_own(vector_, mean_);
    limits_.remember(0, report_.scatter);
    limits_.remember(1, report_.gather);
  }
  last_contributors_ = inbox_.contributors();
  last_came_ = inbox_.came();
  vector_ = nullptr;
  mean_ = nullptr;
  stage_ = kIdle;
  flags_ = 0;
  inbox_.reset(round + 1);
  for (Peer& each : peers_) each.served.store(false, std::memory_order_relaxed);
  send_states();
  socket_.wake();
}

void Endpoint::report(hvds_datagrams_report* report) {
  const std::lock_guard<std::mutex> lock(mutex_);
  *report = report_;
  report->sent = sent_;
  report->rate = pacer_.rate();
  report->silent = 0;
  for (int64_t rank = 0; rank < ranks(); ++rank) {
    if (peer(rank).silent) report->silent |= uint64_t{1} << rank;
  }
}

int64_t Endpoint::record(int64_t* segment, uint64_t* contributors, uint8_t* came) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (segment != nullptr) *segment = layout_.segment;
  if (contributors != nullptr) std::copy(last_contributors_.begin(), last_contributors_.end(), contributors);
  if (came != nullptr) std::copy(last_came_.begin(), last_came_.end(), came);
  return inbox_.most_segments();
}

void Endpoint::close() {
  closing_ = true;
  socket_.wake();
  {
    Lock lock(mutex_);
    changed_.notify_all();
    changed_.wait(lock, [this] { return !busy_; });
    if (joined_) {
      for (int time = 0; time < 3; ++time) send_states(kLeaving);
    }
    joined_ = false;
  }
  if (listener_.joinable()) listener_.join();
}

}  // namespace hvds
