// Lets the kernel cut a message into datagrams.
#ifndef HVD_SPARSE_OPS_DATAGRAMS_CUT_H_
#define HVD_SPARSE_OPS_DATAGRAMS_CUT_H_

#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdint.h>
#include <sys/socket.h>

#include <cstring>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

namespace hvds {

// UDP_SEGMENT (Linux 4.18); must live until the message has been sent.
class Cut {
 public:
  // Cuts into datagrams of `bytes` bytes; the last may be shorter.
  explicit Cut(int64_t bytes) : bytes_(static_cast<uint16_t>(bytes)) {}

  void apply(msghdr* message) {
    message->msg_control = control_;
    message->msg_controllen = sizeof control_;
    cmsghdr* header = CMSG_FIRSTHDR(message);
    header->cmsg_level = IPPROTO_UDP;
    header->cmsg_type = UDP_SEGMENT;
    header->cmsg_len = CMSG_LEN(sizeof bytes_);
    std::memcpy(CMSG_DATA(header), &bytes_, sizeof bytes_);
  }

 private:
  const uint16_t bytes_;
  alignas(cmsghdr) uint8_t control_[CMSG_SPACE(sizeof(uint16_t))] = {};
};

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_DATAGRAMS_CUT_H_
