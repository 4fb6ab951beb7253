// A UDP socket: sends runs of datagrams in as few system calls as the system allows, and receives whatever arrives.
#ifndef HVD_SPARSE_OPS_DATAGRAMS_SOCKET_H_
#define HVD_SPARSE_OPS_DATAGRAMS_SOCKET_H_

#include <netinet/in.h>
#include <stdint.h>
#include <sys/socket.h>

#include <atomic>
#include <memory>
#include <vector>

#include "pacer.h"

namespace hvds {

struct Address {
  sockaddr_storage storage;
  socklen_t bytes;
};

// Parses a numeric address, IPv4 or IPv6; returns false if it is not one.
bool parse_address(const char* host, int32_t port, Address* address);

constexpr int64_t kMostDatagram = 65'507;  // the most bytes that UDP carries over IPv4
constexpr int64_t kMostRun = 64;           // the most datagrams sent at once (UDP_MAX_SEGMENTS of older kernels)

class Socket {
 public:
  Socket() = default;
  ~Socket();
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  // most: bytes of the largest datagram; offload: whether the system may split and join. Returns 0 or an errno.
  int open(const Address& address, int64_t most, bool offload);

  // The port; or -errno.
  int32_t port() const;

  // Sends contiguous datagrams, each of `bytes` bytes except the last; waits for room until `deadline`. What the
  // network does not accept counts as lost on the way. Returns 0, or EMSGSIZE if they are too large for the interface.
  int send(const Address& to, const uint8_t* datagrams, int64_t bytes, int64_t total, Nanoseconds deadline);

  // Waits for datagrams until `deadline` or until woken; then calls handle(datagrams, bytes, stride, count) for all
  // that have arrived, in order: `count` datagrams of `bytes` bytes each, `stride` apart. Oversized datagrams have 0
  // bytes. Returns the number of datagrams.
  template <typename Handle>
  int64_t receive(Nanoseconds deadline, Handle&& handle) {
    int filled = more_ ? fill() : 0;
    if (filled == 0 && wait_readable(deadline)) filled = fill();
    more_ = filled > 0;
    int64_t received = 0;
    for (int first = 0; first < filled;) {
      const int64_t joined = piece_of(first);
      int last = first + 1;
      if (joined > 0) {
        received += take_apart(first, joined, handle);
      } else {
        while (last < filled && piece_of(last) == 0 && bytes_of(last) == bytes_of(first)) ++last;
        handle(data_of(first), bytes_of(first), buffer_bytes_, int64_t{last - first});
        received += last - first;
      }
      first = last;
    }
    return received;
  }

  // Ends the current wait, or the next one; may be called from any thread.
  void wake();

 private:
  static constexpr int kBuffers = 64;

  bool wait_readable(Nanoseconds deadline);
  bool wait_writable(Nanoseconds deadline);
  int fill();
  int64_t piece_of(int buffer) const;  // bytes per datagram if several were joined in a buffer; 0: a single one
  int send_run(const Address& to, const uint8_t* datagrams, int64_t bytes, int64_t total);
  int send_each(const Address& to, const uint8_t* datagrams, int64_t bytes, int64_t total, int64_t* done);

  const uint8_t* data_of(int buffer) const { return memory_.get() + buffer * buffer_bytes_; }

  int64_t bytes_of(int buffer) const {
    return (messages_[buffer].msg_hdr.msg_flags & MSG_TRUNC) != 0 ? 0 : messages_[buffer].msg_len;
  }

  // The last of several joined datagrams may be shorter.
  template <typename Handle>
  int64_t take_apart(int buffer, int64_t bytes, Handle& handle) {
    const int64_t total = bytes_of(buffer), whole = total / bytes;
    if (whole > 0) handle(data_of(buffer), bytes, bytes, whole);
    if (whole * bytes == total && whole > 0) return whole;
    handle(data_of(buffer) + whole * bytes, total - whole * bytes, bytes, int64_t{1});
    return whole + 1;
  }

  int fd_ = -1, bell_ = -1;
  std::atomic<bool> cuts_{false};  // whether the system splits what is sent
  bool joins_ = false;             // whether it joins what is received
  bool more_ = false;              // whether more may have arrived, which needs no wait
  int64_t buffer_bytes_ = 0;
  std::unique_ptr<uint8_t[]> memory_;
  std::vector<mmsghdr> messages_;
  std::vector<iovec> places_;
  std::vector<uint8_t> controls_;
};

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_DATAGRAMS_SOCKET_H_
