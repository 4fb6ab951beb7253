// What a rank's datagrams take of the processor where they are only handed to the system and taken from it, without a
// copy, a tag or a look at them: datagram_floor RATE COUNT BYTES CUT RANK ADDRESS...
//
// Sends COUNT datagrams of BYTES to all other ranks in turn, paced at RATE bits per second, and takes as many from
// them; with CUT 1 the system cuts them out of runs (UDP_SEGMENT). Prints "there" when it listens, begins with the first
// line of its input, and prints the datagrams that came and the processor seconds of the thread that sends and of the
// one that receives. The constants are those of ops/datagrams.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "datagrams/cut.h"

namespace {

constexpr uint16_t kPort = 7073;
constexpr int64_t kHeaders = 42;              // bytes of Ethernet, IP and UDP
constexpr double kQuantum = 250e-6;           // seconds of which the datagrams go out at once
constexpr int kMostRun = 43, kBuffers = 64;   // datagrams
constexpr int64_t kGatherUp = 200'000;        // nanoseconds
constexpr int64_t kSecond = 1'000'000'000;
constexpr int kOver = 1000;                   // milliseconds in which nothing comes

int64_t now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * kSecond + time.tv_nsec;
}

void sleep_until(int64_t when) {
  const timespec time{when / kSecond, when % kSecond};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr) != 0) {
  }
}

double used() {
  rusage usage;
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + 1e-6 * (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

sockaddr_in address_of(const char* host) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(kPort);
  inet_pton(AF_INET, host, &address.sin_addr);
  return address;
}

class Run {
 public:
  Run(int fd, int64_t bytes, bool cut) : fd_(fd), bytes_(bytes), cut_(cut), memory_(kMostRun * bytes) {}

  void send(const sockaddr_in& to, int count) {
    int done = 0;
    while (done < count) {
      const int sent = cut_ ? send_cut(to, count) : send_each(to, count - done);
      done += std::max(sent, 0);
    }
  }

 private:
  int send_each(const sockaddr_in& to, int count) {
    mmsghdr messages[kMostRun] = {};
    iovec places[kMostRun];
    for (int i = 0; i < count; ++i) {
      places[i] = {memory_.data() + i * bytes_, static_cast<size_t>(bytes_)};
      aim(messages[i].msg_hdr, to, &places[i]);
    }
    return sendmmsg(fd_, messages, count, 0);
  }

  int send_cut(const sockaddr_in& to, int count) {
    iovec place{memory_.data(), static_cast<size_t>(count * bytes_)};
    msghdr message{};
    aim(message, to, &place);
    hvds::Cut cut(bytes_);
    cut.apply(&message);
    if (sendmsg(fd_, &message, 0) >= 0) return count;
    std::perror("sendmsg");
    std::_Exit(1);
  }

  static void aim(msghdr& message, const sockaddr_in& to, iovec* place) {
    message.msg_name = const_cast<sockaddr_in*>(&to);
    message.msg_namelen = sizeof to;
    message.msg_iov = place;
    message.msg_iovlen = 1;
  }

  const int fd_;
  const int64_t bytes_;
  const bool cut_;
  std::vector<uint8_t> memory_;
};

int64_t receive(int fd, int64_t wanted, int64_t bytes) {
  std::vector<uint8_t> memory(kBuffers * (bytes + 1));
  std::vector<iovec> places(kBuffers);
  std::vector<mmsghdr> messages(kBuffers);
  int64_t received = 0;
  bool more = false;
  while (received < wanted) {
    pollfd polled{fd, POLLIN, 0};
    if (!more && poll(&polled, 1, kOver) <= 0) break;
    for (int i = 0; i < kBuffers; ++i) {
      places[i] = {memory.data() + i * (bytes + 1), static_cast<size_t>(bytes + 1)};
      messages[i].msg_hdr = msghdr{};
      messages[i].msg_hdr.msg_iov = &places[i];
      messages[i].msg_hdr.msg_iovlen = 1;
    }
    const int came = std::max(recvmmsg(fd, messages.data(), kBuffers, MSG_DONTWAIT, nullptr), 0);
    received += came;
    more = came == kBuffers;
    if (came > 0 && !more) sleep_until(now() + kGatherUp);
  }
  return received;
}

void send(int fd, const std::vector<sockaddr_in>& others, double rate, int64_t count, int64_t bytes, bool cut) {
  Run run(fd, bytes, cut);
  const int length = std::clamp<int>(static_cast<int>(rate / 8 * kQuantum / bytes), 1, kMostRun);
  double free_at = static_cast<double>(now());
  for (int64_t sent = 0, turn = 0; sent < count; ++turn) {
    const int next = static_cast<int>(std::min<int64_t>(length, count - sent));
    free_at = std::max(free_at, static_cast<double>(now() - 2'000'000));
    if (free_at > now()) sleep_until(static_cast<int64_t>(free_at));
    free_at += 8e9 * next * (bytes + kHeaders) / rate;
    run.send(others[turn % others.size()], next);
    sent += next;
  }
}

}  // namespace

int main(int count, char** arguments) {
  const double rate = std::atof(arguments[1]);
  const int64_t datagrams = std::atoll(arguments[2]), bytes = std::atoll(arguments[3]);
  const bool cut = std::atoi(arguments[4]) != 0;
  const int rank = std::atoi(arguments[5]), ranks = count - 6;
  std::vector<sockaddr_in> others;
  for (int step = 1; step < ranks; ++step) others.push_back(address_of(arguments[6 + (rank + step) % ranks]));
  const sockaddr_in own = address_of(arguments[6 + rank]);
  const int fd = socket(AF_INET, SOCK_DGRAM, 0), room = 32 << 20;
  setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
  const int out = 1 << 20;
  setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &out, sizeof out);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&own), sizeof own) != 0) {
    std::perror(arguments[6 + rank]);
    return 1;
  }
  std::puts("there");
  std::fflush(stdout);
  char line[8];
  if (std::fgets(line, sizeof line, stdin) == nullptr) return 1;
  int64_t received = 0;
  double receiving = 0;
  std::thread listener([&] {
    received = receive(fd, datagrams, bytes);
    receiving = used();
  });
  const double before = used();
  send(fd, others, rate, datagrams, bytes, cut);
  const double sending = used() - before;
  listener.join();
  std::printf("%lld %.6f %.6f\n", static_cast<long long>(received), sending, receiving);
  return 0;
}
