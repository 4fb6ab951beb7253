// One rank's side of the averaging: a listening thread (listening.cc), and the caller's thread, which sends
// (sending.cc).
//
// The stages of a round: kWaiting until all others have arrived or `patience` is over; kScatter until the contributions
// to the rank's own block have arrived or can no longer arrive; kGather the same for the others' means; kOver until the
// caller has noticed. Between rounds (kIdle), contributions to the next round are already accepted: a round begins only
// when all ranks are in it, so segments of only one round can arrive, and memory for one is enough.
#ifndef HVD_SPARSE_OPS_DATAGRAMS_ENDPOINT_H_
#define HVD_SPARSE_OPS_DATAGRAMS_ENDPOINT_H_

#include <stdint.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "datagrams.h"
#include "format.h"
#include "inbox.h"
#include "limits.h"
#include "pacer.h"
#include "peer.h"
#include "socket.h"

namespace hvds {

class Endpoint {
 public:
  explicit Endpoint(const hvds_datagrams_settings& settings);
  ~Endpoint() { close(); }

  // These return 0 or an errno.
  int open(const Address& address) { return socket_.open(address, settings_.datagram, settings_.offload != 0); }
  int join(const std::vector<Address>& addresses, const uint32_t* starts, const uint8_t* key);

  int32_t port() const { return socket_.port(); }
  int64_t ranks() const { return settings_.ranks; }
  int64_t size() const { return settings_.size; }

  // The round, or -errno and the reason.
  int64_t average(const float* vector, bool gives, int64_t round, float* mean, int64_t* counts, std::string* why);

  void report(hvds_datagrams_report* report);
  int64_t record(int64_t* segment, uint64_t* contributors, uint8_t* came);
  void close();

 private:
  enum Stage { kIdle, kWaiting, kScatter, kGather, kOver };

  // Datagrams sent to one rank at once: segments of a block, of equal length.
  struct Run {
    Kind kind;
    int64_t rank, block, first, count, elements, bytes;
  };

  int64_t me() const { return settings_.me; }
  Peer& peer(int64_t rank) { return peers_[rank]; }
  bool in_round() const { return stage_ != kIdle; }
  const float* given() const { return gives_ ? vector_ : nullptr; }

  // The listening thread; the mutex is held in all but the first.
  void listen();
  void take(const uint8_t* datagrams, int64_t bytes, int64_t stride, int64_t count);
  bool is_well_formed(const Header& header) const;
  bool is_current(const Header& header);
  hvds_datagrams_fate take_tagged(const Header& header, const uint8_t* datagram, int64_t bytes, const uint8_t* tag);
  hvds_datagrams_fate take_stale(const Header& header, const uint8_t* datagram, int64_t bytes);
  hvds_datagrams_fate take_content(const Header& header, const uint8_t* payload, int64_t bytes);
  hvds_datagrams_fate take_segment(const Header& header, const uint8_t* payload);
  void take_state(Peer& from, const uint8_t* payload);
  void heard_from(Peer& from);
  void learn_start(int64_t rank, uint32_t start);
  void look_at_phases();
  bool owes(int64_t rank, int phase);
  void end_scatter();
  void finish_some();
  bool has_averaged() const { return stage_ == kOver || (stage_ == kGather && looked_at_ == inbox_.segments()); }
  Nanoseconds deadline() const;
  Nanoseconds next_look();
  void send_states(uint8_t extra = 0);

  // The sending side: on the caller's thread; functions that take its lock are called with the mutex held.
  using Lock = std::unique_lock<std::mutex>;
  void enter(const float* vector, bool gives, int64_t round, float* mean);
  void spread_vector(Lock& lock);
  void gather_up(int64_t round, float* mean);
  bool wait_for_others(Lock& lock);
  bool all_have_come();
  bool nobody_has_come();
  void begin();
  void scatter();
  void gather();
  bool wait_for_means(int64_t place, int64_t wanted);
  int64_t send_run(int64_t rank, Kind kind, int64_t first, int64_t count);
  int64_t number_at(Kind kind, int64_t place) const;
  Run run_from(Kind kind, int64_t rank, int64_t first, int64_t count) const;
  void seal(const Run& run);
  Header header_for(int64_t rank, Kind kind) const;
  void say_sent(Flag flag);
  int64_t run_length() const;
  bool out_of_time(Nanoseconds deadline) const { return closing_ || now() >= deadline; }
  void conclude(int64_t* counts);
  double advertised_rate() const;
  double common_rate();

  const hvds_datagrams_settings settings_;
  const Layout layout_;
  Socket socket_;
  Pacer pacer_;
  Key master_{};
  uint32_t job_ = 0;

  std::mutex mutex_;  // guards all that follows, except atomics
  std::condition_variable changed_;
  std::vector<Peer> peers_;
  Inbox inbox_;
  Limits limits_;
  Stage stage_ = kIdle;
  const float* vector_ = nullptr;
  bool gives_ = true;  // whether this rank contributes its vector
  float* mean_ = nullptr;
  int64_t looked_at_ = 0;  // in the all-gather: segments of the own block before this one have been averaged
  uint64_t expected_ = 0;  // ranks that were present when the round began
  uint64_t giving_ = 0;    // those of them that contribute
  uint8_t flags_ = 0;      // sent to the others
  bool busy_ = false, joined_ = false;
  Nanoseconds time_ = 0;       // when the listening thread last looked
  Nanoseconds next_state_ = 0;
  Nanoseconds begun_ = 0, scattered_ = 0, scatter_deadline_ = 0, gather_deadline_ = 0;
  hvds_datagrams_report report_{};
  std::vector<uint64_t> last_contributors_;
  std::vector<uint8_t> last_came_;

  std::mutex ways_;  // guards the ways to the peers; taken after mutex_
  std::atomic<bool> closing_{false};
  std::atomic<int64_t> sent_{0};
  std::atomic<double> achieved_;  // bits per second, in the last reduce-scatter
  std::atomic<int> unfit_{0};     // an errno: datagrams are too large for the interface
  std::vector<uint8_t> run_;      // what the caller's thread sends next
  Floats spread_;                 // the transform of the vector, if transforms are sent
  std::thread listener_;
};

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_DATAGRAMS_ENDPOINT_H_
