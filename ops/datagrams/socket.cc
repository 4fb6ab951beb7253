#include "socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "cut.h"

#ifndef UDP_GRO
#define UDP_GRO 104
#endif

namespace hvds {
namespace {

constexpr int kReceiveBytes = 32 << 20;  // or as much as the system grants: a late thread loses nothing
constexpr int kSendBytes = 1 << 20;      // a few milliseconds' worth: what a queue of this host rejects waits
constexpr int64_t kJoined = 1 << 16;     // the most bytes that the system joins
constexpr size_t kControl = CMSG_SPACE(sizeof(int));

void ask_for(int fd, int forced, int plain, int bytes) {
  if (setsockopt(fd, SOL_SOCKET, forced, &bytes, sizeof bytes) != 0) {
    setsockopt(fd, SOL_SOCKET, plain, &bytes, sizeof bytes);
  }
}

bool wait_for(pollfd* polled, int count, Nanoseconds deadline) {
  const Nanoseconds left = std::max<Nanoseconds>(deadline - now(), 0);
  const timespec limit{left / kSecond, left % kSecond};
  return ppoll(polled, count, &limit, nullptr) > 0;
}

}  // namespace

bool parse_address(const char* host, int32_t port, Address* address) {
  std::memset(address, 0, sizeof *address);
  if (port < 0 || port > 65535) return false;
  auto* four = reinterpret_cast<sockaddr_in*>(&address->storage);
  auto* six = reinterpret_cast<sockaddr_in6*>(&address->storage);
  if (inet_pton(AF_INET, host, &four->sin_addr) == 1) {
    four->sin_family = AF_INET;
    four->sin_port = htons(static_cast<uint16_t>(port));
    address->bytes = sizeof *four;
    return true;
  }
  if (inet_pton(AF_INET6, host, &six->sin6_addr) == 1) {
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(static_cast<uint16_t>(port));
    address->bytes = sizeof *six;
    return true;
  }
  return false;
}

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
  if (bell_ >= 0) close(bell_);
}

int Socket::open(const Address& address, int64_t most, bool offload) {
  fd_ = socket(address.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  bell_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (fd_ < 0 || bell_ < 0) return errno;
  if (bind(fd_, reinterpret_cast<const sockaddr*>(&address.storage), address.bytes) != 0) return errno;
  ask_for(fd_, SO_RCVBUFFORCE, SO_RCVBUF, kReceiveBytes);
  ask_for(fd_, SO_SNDBUFFORCE, SO_SNDBUF, kSendBytes);
  const int whole = IP_PMTUDISC_DO;  // a datagram that is too large for a link is an error, not two fragments
  const bool v4 = address.storage.ss_family == AF_INET;
  setsockopt(fd_, v4 ? IPPROTO_IP : IPPROTO_IPV6, v4 ? IP_MTU_DISCOVER : IPV6_MTU_DISCOVER, &whole, sizeof whole);
  const int on = 1;
  cuts_ = offload;
  joins_ = offload && setsockopt(fd_, IPPROTO_UDP, UDP_GRO, &on, sizeof on) == 0;
  buffer_bytes_ = joins_ ? kJoined : most + 1;
  memory_.reset(new uint8_t[kBuffers * buffer_bytes_]);
  messages_.resize(kBuffers);
  places_.resize(kBuffers);
  controls_.resize(kBuffers * kControl);
  return 0;
}

int32_t Socket::port() const {
  Address own;
  own.bytes = sizeof own.storage;
  if (getsockname(fd_, reinterpret_cast<sockaddr*>(&own.storage), &own.bytes) != 0) return -errno;
  const bool v4 = own.storage.ss_family == AF_INET;
  return ntohs(v4 ? reinterpret_cast<sockaddr_in*>(&own.storage)->sin_port
                  : reinterpret_cast<sockaddr_in6*>(&own.storage)->sin6_port);
}

// ---- Out ----

int Socket::send(const Address& to, const uint8_t* datagrams, int64_t bytes, int64_t total, Nanoseconds deadline) {
  int64_t done = 0;
  for (;;) {
    const bool run = cuts_.load(std::memory_order_relaxed) && total - done > bytes;
    const int failed = run ? send_run(to, datagrams + done, bytes, total - done)
                           : send_each(to, datagrams, bytes, total, &done);
    if (failed == 0) return 0;
    if (failed == EAGAIN || failed == ENOBUFS) {
      if (!wait_writable(deadline)) return 0;
    } else if (run && (failed == EIO || failed == EINVAL || failed == EMSGSIZE || failed == EOPNOTSUPP)) {
      cuts_.store(false, std::memory_order_relaxed);  // not supported by this system or this interface
    } else if (failed == EMSGSIZE) {
      return failed;
    } else if (failed != EINTR) {
      done += run ? total : bytes;  // no route, refused by a filter, no such host: lost in the network
      if (done >= total) return 0;
    }
  }
}

int Socket::send_run(const Address& to, const uint8_t* datagrams, int64_t bytes, int64_t total) {
  iovec place{const_cast<uint8_t*>(datagrams), static_cast<size_t>(total)};
  msghdr message{};
  message.msg_name = const_cast<sockaddr_storage*>(&to.storage);
  message.msg_namelen = to.bytes;
  message.msg_iov = &place;
  message.msg_iovlen = 1;
  Cut cut(bytes);
  cut.apply(&message);
  return sendmsg(fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? errno : 0;
}

int Socket::send_each(const Address& to, const uint8_t* datagrams, int64_t bytes, int64_t total, int64_t* done) {
  mmsghdr messages[kMostRun] = {};
  iovec places[kMostRun];
  while (*done < total) {
    int count = 0;
    for (int64_t at = *done; at < total && count < kMostRun; at += bytes, ++count) {
      places[count] = {const_cast<uint8_t*>(datagrams) + at, static_cast<size_t>(std::min(bytes, total - at))};
      messages[count].msg_hdr.msg_name = const_cast<sockaddr_storage*>(&to.storage);
      messages[count].msg_hdr.msg_namelen = to.bytes;
      messages[count].msg_hdr.msg_iov = &places[count];
      messages[count].msg_hdr.msg_iovlen = 1;
    }
    const int sent = sendmmsg(fd_, messages, count, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) return errno;
    *done += sent * bytes;
  }
  return 0;
}

bool Socket::wait_writable(Nanoseconds deadline) {
  pollfd polled{fd_, POLLOUT, 0};
  return wait_for(&polled, 1, deadline);
}

// ---- In ----

bool Socket::wait_readable(Nanoseconds deadline) {
  pollfd polled[2] = {{fd_, POLLIN, 0}, {bell_, POLLIN, 0}};
  if (!wait_for(polled, 2, deadline)) return false;
  uint64_t rung;
  if (polled[1].revents != 0 && read(bell_, &rung, sizeof rung) < 0) return false;
  return polled[0].revents != 0;
}

void Socket::wake() {
  const uint64_t once = 1;
  if (write(bell_, &once, sizeof once) < 0) return;  // it has been rung so often that it rings anyway
}

int Socket::fill() {
  for (int i = 0; i < kBuffers; ++i) {
    places_[i] = {memory_.get() + i * buffer_bytes_, static_cast<size_t>(buffer_bytes_)};
    msghdr& header = messages_[i].msg_hdr;
    header = msghdr{};
    header.msg_iov = &places_[i];
    header.msg_iovlen = 1;
    header.msg_control = controls_.data() + i * kControl;
    header.msg_controllen = joins_ ? kControl : 0;
  }
  return std::max(recvmmsg(fd_, messages_.data(), kBuffers, MSG_DONTWAIT, nullptr), 0);
}

int64_t Socket::piece_of(int buffer) const {
  if (!joins_) return 0;
  auto* header = const_cast<msghdr*>(&messages_[buffer].msg_hdr);
  for (cmsghdr* found = CMSG_FIRSTHDR(header); found != nullptr; found = CMSG_NXTHDR(header, found)) {
    if (found->cmsg_level != IPPROTO_UDP || found->cmsg_type != UDP_GRO) continue;
    int bytes = 0;
    std::memcpy(&bytes, CMSG_DATA(found), sizeof bytes);
    return bytes;
  }
  return 0;
}

}  // namespace hvds
