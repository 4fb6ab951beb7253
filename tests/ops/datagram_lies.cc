// Two ranks that average by datagrams, and an attacker between them: datagram_lies LIES SIZE SPREAD
//
// It sees all their datagrams, and then sends LIES false ones to rank 0: made up, altered, truncated, replayed, tagged
// with another key, or tagged with the right one but about a segment that does not exist. Ends with status 0 if none
// was accepted and the means were right.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "datagram_job.h"
#include "datagrams/format.h"

namespace {

constexpr int64_t kRounds = 4;     // afterwards rank 0 owns block 0, and rank 1 the other one
constexpr int64_t kSegment = 354;  // elements

// Relays between rank 0 and rank 1, which take it for each other.
class Eavesdropper {
 public:
  Eavesdropper() : random_(1) {
    for (int side = 0; side < 2; ++side) {
      fds_[side] = socket(AF_INET, SOCK_DGRAM, 0);
      sockaddr_in any{};
      any.sin_family = AF_INET;
      any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      socklen_t bytes = sizeof any;
      const int room = 4 << 20;
      setsockopt(fds_[side], SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
      if (bind(fds_[side], reinterpret_cast<sockaddr*>(&any), sizeof any) != 0) fail("cannot bind", -1);
      getsockname(fds_[side], reinterpret_cast<sockaddr*>(&any), &bytes);
      ports[side] = ntohs(any.sin_port);
    }
  }

  int32_t ports[2];       // the port of rank 1 as rank 0 sees it, and of rank 0 as rank 1 does
  int64_t forwarded = 0;  // to rank 0

  // Forwards datagrams for `milliseconds`, and remembers those to rank 0.
  void forward(const int32_t* ranks, int milliseconds) {
    pollfd polled[2] = {{fds_[0], POLLIN, 0}, {fds_[1], POLLIN, 0}};
    if (poll(polled, 2, milliseconds) <= 0) return;
    for (int side = 0; side < 2; ++side) {
      uint8_t datagram[2048];
      const ssize_t bytes = recv(fds_[side], datagram, sizeof datagram, MSG_DONTWAIT);
      if (bytes <= 0) continue;
      // What rank 0 sends arrives at side 0 and leaves from side 1.
      send(1 - side, ranks[1 - side], datagram, bytes);
      if (side == 0) continue;
      ++forwarded;
      hvds::Header header;
      std::memcpy(&header, datagram, sizeof header);
      highest_ = std::max(highest_, header.counter);
      if (known_.size() < 4096) known_.emplace_back(datagram, datagram + bytes);
    }
  }

  // Sends something that rank 0 must not accept.
  void lie(int32_t port) {
    std::vector<uint8_t> lie = known_[random_() % known_.size()];
    hvds::Header header;
    std::memcpy(&header, lie.data(), sizeof header);
    switch (random_() % 8) {
      case 0:  // random bytes
        lie.resize(random_() % 2000);
        for (uint8_t& byte : lie) byte = static_cast<uint8_t>(random_());
        break;
      case 1:  // replayed
        break;
      case 2:  // truncated
        lie.resize(random_() % lie.size());
        break;
      case 3:  // one bit altered
        lie[random_() % lie.size()] ^= static_cast<uint8_t>(1u << random_() % 8);
        break;
      case 4:  // extended
        lie.resize(lie.size() + 1 + random_() % 64);
        break;
      case 5:  // tagged with another key
        sign(lie, fresh(header), "another secret, ");
        break;
      case 6:  // by a process that has ended
        header.sender_start = 0;
        sign(lie, fresh(header), reinterpret_cast<const char*>(kKey));
        break;
      case 7:  // with the right key, about a segment that does not exist
        header.kind = random_() % 2 == 0 ? hvds::kContribution : hvds::kMean;
        header.offset = static_cast<uint32_t>(random_() % 2 == 0 ? random_() | 1 : (100 + random_() % 9) * kSegment);
        header.block = static_cast<uint16_t>(random_() % 2 == 0 ? header.kind == hvds::kMean : random_());
        header.elements = static_cast<uint16_t>(random_() % 400);
        header.round = static_cast<uint32_t>(kRounds - random_() % 2);
        if (random_() % 4 != 0) lie.resize(hvds::kFrame + 4 * header.elements);  // or of another length than stated
        sign(lie, fresh(header), reinterpret_cast<const char*>(kKey));
        break;
    }
    send(1, port, lie.data(), lie.size());
  }

 private:
  // The header with a counter that has not been used.
  hvds::Header fresh(hvds::Header header) {
    header.counter = ++highest_;
    return header;
  }

  static void sign(std::vector<uint8_t>& datagram, const hvds::Header& header, const char* secret) {
    hvds::Key master;
    std::memcpy(master.bytes, secret, sizeof master.bytes);
    const hvds::Key key =
        hvds::derive(master, header.sender, header.receiver, header.sender_start, header.receiver_start);
    std::memcpy(datagram.data(), &header, sizeof header);
    const int64_t bytes = static_cast<int64_t>(datagram.size()) - HVDS_TAG_BYTES;
    hvds_siphash(key.bytes, datagram.data(), bytes, datagram.data() + bytes);
  }

  void send(int side, int32_t port, const uint8_t* datagram, size_t bytes) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<uint16_t>(port));
    const auto* address = reinterpret_cast<const sockaddr*>(&to);
    if (sendto(fds_[side], datagram, bytes, 0, address, sizeof to) < 0) fail("cannot send", -1);
  }

  int fds_[2];
  uint64_t highest_ = 0;
  std::mt19937_64 random_;
  std::vector<std::vector<uint8_t>> known_;
};

int64_t seen_by(int64_t endpoint, int64_t* accepted) {
  hvds_datagrams_report report;
  hvds_datagrams_report_of(endpoint, &report);
  int64_t seen = 0;
  for (const int64_t fate : report.fates) seen += fate;
  *accepted = report.fates[HVDS_ACCEPTED];
  return seen;
}

void run(int64_t lies, int64_t size, bool spread) {
  Eavesdropper third;
  int32_t ranks[2] = {0, 0};
  int64_t endpoints[2];
  for (int rank = 0; rank < 2; ++rank) endpoints[rank] = open(settings_of({2, 0, size, spread}, rank), &ranks[rank]);
  const int32_t for_zero[2] = {ranks[0], third.ports[0]}, for_one[2] = {third.ports[1], ranks[1]};
  const Job pair{2, kRounds, size, spread};
  std::vector<std::thread> threads;
  std::atomic<int> done{0};
  for (int rank = 0; rank < 2; ++rank) {
    const std::vector<int32_t> ports(rank == 0 ? for_zero : for_one, (rank == 0 ? for_zero : for_one) + 2);
    threads.emplace_back([&, rank, ports] {
      run_thread(pair, endpoints[rank], ports, rank);
      done.fetch_add(1);
    });
  }
  while (done.load() < 2) third.forward(ranks, 1);
  for (std::thread& thread : threads) thread.join();
  // All that was forwarded arrives; what the ranks send from now on does not.
  int64_t before = 0, after = 0;
  while (seen_by(endpoints[0], &before) < third.forwarded) usleep(1000);
  const int64_t last = third.forwarded;
  for (int64_t sent = 0; sent < lies;) {
    for (int64_t i = 0; i < 500 && sent < lies; ++i, ++sent) third.lie(ranks[0]);
    while (seen_by(endpoints[0], &after) < last + sent) usleep(100);
  }
  if (after != before) fail(std::to_string(after - before) + " lies were accepted", 0);
  hvds_datagrams_report report;
  hvds_datagrams_report_of(endpoints[0], &report);
  for (int fate = HVDS_BAD_SIZE; fate <= HVDS_PLACE; ++fate) {
    if (report.fates[fate] == 0) fail("no lie met fate " + std::to_string(fate), 0);
  }
  for (const int64_t endpoint : endpoints) hvds_datagrams_close(endpoint);
}

}  // namespace

int main(int, char** arguments) {
  run(std::atoll(arguments[1]), std::atoll(arguments[2]), std::atoi(arguments[3]) != 0);
  return 0;
}
