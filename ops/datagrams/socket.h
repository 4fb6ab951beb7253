// A UDP socket: runs of datagrams out, as few system calls as the system lets it, and whatever comes in.
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

// A numeric address, IPv4 or IPv6; false where it is none.
bool parse_address(const char* host, int32_t port, Address* address);

constexpr int64_t kMostDatagram = 65'507;  // bytes that UDP carries over IPv4
constexpr int64_t kMostRun = 64;           // datagrams that go out at once (UDP_MAX_SEGMENTS of older kernels)

class Socket {
 public:
  Socket() = default;
  ~Socket();
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  // most: bytes of a datagram; offload: whether the system may cut and join. Returns 0 or an errno.
  int open(const Address& address, int64_t most, bool offload);

  // The port; or -errno.
  int32_t port() const;

  // Sends datagrams that lie end to end, each `bytes` long but the last; waits for room until `deadline`. What the
  // network does not take is lost as if on the way. Returns 0; EMSGSIZE where they are too large for the interface.
  int send(const Address& to, const uint8_t* datagrams, int64_t bytes, int64_t total, Nanoseconds deadline);

  // Waits for datagrams, or until it is woken or `deadline`; then calls handle(datagrams, bytes, stride, count) for all
  // there is, in order: `count` datagrams of `bytes` each, `stride` apart. Those that were too long have no bytes.
  // Returns how many there were.
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

  // Ends a wait, now or the next one; from any thread.
  void wake();

 private:
  static constexpr int kBuffers = 64;

  bool wait_readable(Nanoseconds deadline);
  bool wait_writable(Nanoseconds deadline);
  int fill();
  int64_t piece_of(int buffer) const;  // bytes of each datagram that was joined with others in a buffer; 0: alone
  int send_run(const Address& to, const uint8_t* datagrams, int64_t bytes, int64_t total);
  int send_each(const Address& to, const uint8_t* datagrams, int64_t bytes, int64_t total, int64_t* done);

  const uint8_t* data_of(int buffer) const { return memory_.get() + buffer * buffer_bytes_; }

  int64_t bytes_of(int buffer) const {
    return (messages_[buffer].msg_hdr.msg_flags & MSG_TRUNC) != 0 ? 0 : messages_[buffer].msg_len;
  }

  // Of datagrams that were joined, the last may be shorter.
  template <typename Handle>
  int64_t take_apart(int buffer, int64_t bytes, Handle& handle) {
    const int64_t total = bytes_of(buffer), whole = total / bytes;
    if (whole > 0) handle(data_of(buffer), bytes, bytes, whole);
    if (whole * bytes == total && whole > 0) return whole;
    handle(data_of(buffer) + whole * bytes, total - whole * bytes, bytes, int64_t{1});
    return whole + 1;
  }

  int fd_ = -1, bell_ = -1;
  std::atomic<bool> cuts_{false};  // whether the system cuts what is sent
  bool joins_ = false;             // whether it joins what is received
  bool more_ = false;              // whether there may be more than was received, which needs no wait
  int64_t buffer_bytes_ = 0;
  std::unique_ptr<uint8_t[]> memory_;
  std::vector<mmsghdr> messages_;
  std::vector<iovec> places_;
  std::vector<uint8_t> controls_;
};

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_DATAGRAMS_SOCKET_H_
