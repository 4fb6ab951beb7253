// The listening thread.
#include <algorithm>
#include <cstring>
#include <limits>

#include "../common/float_mode.h"
#include "endpoint.h"

namespace hvds {
namespace {

constexpr Nanoseconds kStateInRound = 5 * kMillisecond;
constexpr Nanoseconds kStateIdle = 100 * kMillisecond;
constexpr Nanoseconds kSettle = 2 * kMillisecond;  // datagrams sent last may overtake earlier ones
constexpr Nanoseconds kGatherUp = 200'000;         // sleep in a phase, rather than waking for each datagram
constexpr int64_t kFew = 64;                       // the most datagrams that one call brings
constexpr int64_t kAtOnce = 128;                   // segments averaged before checking for arrivals again

}  // namespace

void Endpoint::listen() {
  const StandardFloats standard;
  Nanoseconds next = 0;
  while (!closing_) {
    bool in_phase = false;
    const auto handle = [this](const uint8_t* datagrams, int64_t bytes, int64_t stride, int64_t count) {
      const std::lock_guard<std::mutex> lock(mutex_);
      time_ = now();
      if (time_ >= deadline()) look_at_phases();  // there may be many datagrams to process
      take(datagrams, bytes, stride, count);
    };
    const int64_t received = socket_.receive(next, handle);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      time_ = now();
      if (stage_ == kGather) finish_some();
      look_at_phases();
      if (time_ >= next_state_) send_states();
      next = next_look();
      in_phase = (stage_ == kScatter || stage_ == kGather) && next > time_;
    }
    if (in_phase && received > 0 && received < kFew) sleep_until(now() + kGatherUp);
  }
}

// ---- Arriving datagrams ----

// Datagrams of equal length: their tags are computed side by side, whatever their senders.
void Endpoint::take(const uint8_t* datagrams, int64_t bytes, int64_t stride, int64_t count) {
  if (bytes < kFrame || bytes > settings_.datagram) {
    report_.fates[HVDS_BAD_SIZE] += count;
    return;
  }
  for (int64_t first = 0; first < count; first += HVDS_LANES) {
    const int64_t group = std::min<int64_t>(HVDS_LANES, count - first);
    const uint8_t* start = datagrams + first * stride;
    Header headers[HVDS_LANES];
    const uint8_t *keys[HVDS_LANES], *messages[HVDS_LANES];
    bool current = true;
    for (int64_t i = 0; i < group; ++i) {
      messages[i] = start + i * stride;
      std::memcpy(&headers[i], messages[i], sizeof(Header));
      current = current && is_well_formed(headers[i]) && is_current(headers[i]);
      if (current) keys[i] = peer(headers[i].sender).in.bytes;
    }
    uint8_t tags[HVDS_LANES][HVDS_TAG_BYTES];
    const int64_t tagged = bytes - HVDS_TAG_BYTES;
    if (current) hvds_siphash_many(keys, messages, group, tagged, tags[0]);
    for (int64_t i = 0; i < group; ++i) {
      const uint8_t* datagram = messages[i];
      hvds_datagrams_fate fate = HVDS_BAD_HEADER;
      if (!is_well_formed(headers[i])) {
      } else if (!is_current(headers[i])) {
        fate = take_stale(headers[i], datagram, bytes);
      } else {
        if (!current) hvds_siphash(peer(headers[i].sender).in.bytes, datagram, tagged, tags[i]);
        fate = take_tagged(headers[i], datagram, bytes, tags[i]);
      }
      ++report_.fates[fate];
    }
  }
}

bool Endpoint::is_well_formed(const Header& header) const {
  return header.magic == kMagic && header.job == job_ && header.receiver == me() && header.sender < ranks() &&
         header.sender != me() && (header.kind == kState || header.kind == kContribution || header.kind == kMean);
}

bool Endpoint::is_current(const Header& header) {
  return header.receiver_start == settings_.start && header.sender_start == peer(header.sender).start;
}

hvds_datagrams_fate Endpoint::take_tagged(const Header& header, const uint8_t* datagram, int64_t bytes,
                                          const uint8_t* tag) {
  if (!same_tag(tag, datagram + bytes - HVDS_TAG_BYTES)) return HVDS_BAD_TAG;
  Peer& from = peer(header.sender);
  if (!from.window.accept(header.counter)) return HVDS_REPLAYED;
  ++from.accepted;
  return take_content(header, datagram + sizeof(Header), bytes - kFrame);
}

// Handles a datagram from or for a former process. A valid one from a restarted process makes that process known.
hvds_datagrams_fate Endpoint::take_stale(const Header& header, const uint8_t* datagram, int64_t bytes) {
  if (header.kind != kState || header.sender_start <= peer(header.sender).start) return HVDS_BAD_START;
  const Key key = derive(master_, header.sender, header.receiver, header.sender_start, header.receiver_start);
  uint8_t tag[HVDS_TAG_BYTES];
  hvds_siphash(key.bytes, datagram, bytes - HVDS_TAG_BYTES, tag);
  if (!same_tag(tag, datagram + bytes - HVDS_TAG_BYTES)) return HVDS_BAD_TAG;
  learn_start(header.sender, header.sender_start);
  // The sender may take this rank for a former process, too; the next state sent to it corrects that.
  return is_current(header) ? take_tagged(header, datagram, bytes, tag) : HVDS_BAD_START;
}

void Endpoint::learn_start(int64_t rank, uint32_t start) {
  const std::lock_guard<std::mutex> lock(ways_);
  Peer& known = peer(rank);
  known.begin_anew(start);
  known.in = derive(master_, rank, me(), start, settings_.start);
  known.out = derive(master_, me(), rank, settings_.start, start);
}

hvds_datagrams_fate Endpoint::take_content(const Header& header, const uint8_t* payload, int64_t bytes) {
  Peer& from = peer(header.sender);
  if (header.kind == kState) {
    if (bytes != sizeof(State)) return HVDS_BAD_SIZE;
    from.hear(header.round, header.flags & (kInRound | kScatterSent | kGatherSent | kEmpty), time_);
    take_state(from, payload);
    if ((header.flags & kLeaving) != 0) {
      from.silent = from.left = true;
      changed_.notify_all();
      return HVDS_ACCEPTED;
    }
    heard_from(from);
    return HVDS_ACCEPTED;
  }
  if (bytes != header.elements * int64_t{sizeof(float)}) return HVDS_BAD_SIZE;
  const bool news = !from.in_round(header.round);
  from.hear(header.round, kInRound, time_);
  if (news) heard_from(from);
  return take_segment(header, payload);
}

void Endpoint::take_state(Peer& from, const uint8_t* payload) {
  State state;
  std::memcpy(&state, payload, sizeof state);
  if (state.rate > 0) from.rate = state.rate;
  if (state.highest <= from.told_highest || state.accepted < from.told_accepted) return;
  if (from.told_highest != 0) {  // the first one only starts the count
    const auto sent = static_cast<int64_t>(state.highest - from.told_highest);
    const auto came = static_cast<int64_t>(state.accepted - from.told_accepted);
    pacer_.report(sent, sent - came, time_);
  }
  from.told_highest = state.highest;
  from.told_accepted = state.accepted;
}

void Endpoint::heard_from(Peer& from) {
  if ((from.flags & kInRound) != 0 && from.round >= inbox_.round()) from.silent = from.left = false;
  from.served.store(from.in_round(inbox_.round()), std::memory_order_relaxed);
  if (stage_ == kWaiting) changed_.notify_all();
}

hvds_datagrams_fate Endpoint::take_segment(const Header& header, const uint8_t* payload) {
  if (header.round != inbox_.round()) return HVDS_ROUND;
  const bool contribution = header.kind == kContribution;
  const int64_t block = contribution ? inbox_.block() : layout_.block_of(header.sender, inbox_.round());
  const int64_t number = header.offset / layout_.segment;
  if (header.block != block || header.offset % layout_.segment != 0 || number >= layout_.segments_of(block) ||
      header.elements != layout_.elements_of(block, number)) {
    return HVDS_PLACE;
  }
  if (contribution) {
    if (stage_ == kGather || stage_ == kOver) return HVDS_LATE;
    const hvds_datagrams_fate fate = inbox_.put(header.sender, number, payload);
    if (stage_ == kScatter && inbox_.has_all(number)) inbox_.finish(number, given(), mean_);
    return fate;
  }
  if (stage_ == kIdle || stage_ == kOver) return HVDS_LATE;
  return inbox_.put_mean(header.sender, number, payload, mean_);
}

// ---- What follows from arrivals ----

// Whether a rank may still send something in a phase: 0 the reduce-scatter, 1 the all-gather.
bool Endpoint::owes(int64_t rank, int phase) {
  if (((phase == 0 ? giving_ : expected_) >> rank & 1) == 0) return false;
  const Peer& from = peer(rank);
  const int64_t due = phase == 0 ? inbox_.segments() : layout_.segments_of(layout_.block_of(rank, inbox_.round()));
  if ((phase == 0 ? inbox_.scattered(rank) : inbox_.gathered(rank)) == due) return false;
  const bool settled = from.sent_all[phase] != 0 && time_ >= from.sent_all[phase] + kSettle;
  return !from.left && from.round == inbox_.round() && !settled;
}

void Endpoint::look_at_phases() {
  if (stage_ != kScatter && stage_ != kGather) return;
  bool waiting[2] = {false, false};
  for (int64_t rank = 0; rank < ranks(); ++rank) {
    waiting[0] = waiting[0] || owes(rank, 0);
    waiting[1] = waiting[1] || owes(rank, 1);
  }
  if (stage_ == kScatter && (!waiting[0] || time_ >= deadline())) end_scatter();
  const bool ended = (flags_ & kGatherSent) != 0 && !waiting[1];
  if (stage_ == kGather && (ended || time_ >= deadline())) {
    report_.gather = static_cast<double>(time_ - scattered_) / kSecond;
    stage_ = kOver;
  }
  changed_.notify_all();
}

// From here on, incomplete segments are averaged as time allows: doing so at once would prolong this phase by a pass
// over the whole block, and delay the next one as much.
void Endpoint::end_scatter() {
  stage_ = kGather;
  scattered_ = time_;
  looked_at_ = 0;
  report_.scatter = static_cast<double>(scattered_ - begun_) / kSecond;
  report_.gather_limit = static_cast<double>(std::max<Nanoseconds>(gather_deadline_ - scattered_, 0)) / kSecond;
}

void Endpoint::finish_some() {
  const int64_t end = std::min(looked_at_ + kAtOnce, inbox_.segments());
  for (; looked_at_ < end; ++looked_at_) inbox_.finish(looked_at_, given(), mean_);
}

// The latest time at which the phase ends; never, outside the phases.
Nanoseconds Endpoint::deadline() const {
  if (stage_ == kScatter) return scatter_deadline_;
  return stage_ == kGather ? gather_deadline_ : std::numeric_limits<Nanoseconds>::max();
}

Nanoseconds Endpoint::next_look() {
  if (stage_ != kScatter && stage_ != kGather) return next_state_;
  if (stage_ == kGather && looked_at_ < inbox_.segments()) return time_;
  Nanoseconds next = std::min(next_state_, deadline());
  for (const Peer& each : peers_) {
    const Nanoseconds told = each.sent_all[stage_ == kScatter ? 0 : 1];
    if (told != 0 && told + kSettle > time_) next = std::min(next, told + kSettle);
  }
  return next;
}

// Sends this rank's state to all others; the next state makes up for a lost one.
void Endpoint::send_states(uint8_t extra) {
  next_state_ = now() + (in_round() ? kStateInRound : kStateIdle);
  for (int64_t rank = 0; rank < ranks(); ++rank) {
    if (rank == me()) continue;
    Peer& to = peer(rank);
    const State state{to.window.highest(), to.accepted, advertised_rate()};
    Header header = header_for(rank, kState);
    header.flags = flags_ | extra;
    header.receiver_start = to.start;
    header.counter = to.counter.fetch_add(1, std::memory_order_relaxed) + 1;
    uint8_t datagram[kStateBytes];
    std::memcpy(datagram, &header, sizeof header);
    std::memcpy(datagram + sizeof header, &state, sizeof state);
    hvds_siphash(to.out.bytes, datagram, sizeof header + sizeof state, datagram + sizeof header + sizeof state);
    socket_.send(to.address, datagram, kStateBytes, kStateBytes, 0);
    sent_.fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace hvds
