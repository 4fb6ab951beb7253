// Ranks of one host exchange vectors through memory that all of them have mapped.
//
// Each rank has a control block and, while an exchange runs, an inbox: anonymous memory (memfd) that the others open by
// /proc/PID/fd. Nothing has a name in a file system, so that nothing is left by a process that is killed, the size of
// /dev/shm does not matter, and only processes of the same user get in. Each sender writes its piece into the receivers'
// inboxes, where the receiver uses it in place.
#ifndef HVD_SPARSE_OPS_SHARED_MEMORY_H_
#define HVD_SPARSE_OPS_SHARED_MEMORY_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { HVDS_MAX_NEIGHBOURS = 64 };

// Makes this rank's side of a group of `members` ranks of one host, of which it is number `me`.
//   address [3]: what the others need to find it.
// Returns the group's number in this process, at least 1, or -errno.
int64_t hvds_neighbours_open(int32_t members, int32_t me, int64_t* address);

// Finds the others. Every member must have opened before.
//   addresses: [members][3], in the order of the members.
// Returns 0 or an errno: the group is then of no use and should be closed.
int32_t hvds_neighbours_join(int64_t group, const int64_t* addresses);

// Tells the others that this rank leaves; exchanges that run or are begun later fail, here and there.
void hvds_neighbours_close(int64_t group);

// What an exchange has brought; it lies in memory until it is released.
typedef struct hvds_received hvds_received;

// Gives each member a piece and waits for theirs; may be called for several channels at once, each from its own thread.
//   channel:  the same on every member, unique among the exchanges in flight; every member calls equally often.
//   pieces:   [members], `bytes` [members] long; written `offsets` [members] bytes into that member's inbox.
//   expected: the bytes that this member's inbox must have: all that is sent to it.
//   message:  [256], why it failed.
// Returns NULL where it failed: a member has left or ended, or there is no memory.
hvds_received* hvds_exchange(int64_t group, const char* channel, const void* const* pieces, const int64_t* bytes,
                             const int64_t* offsets, int64_t expected, char* message);

// The inbox: `expected` bytes, from the beginning of a page.
void* hvds_received_data(const hvds_received* received);
void hvds_received_release(hvds_received* received);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_SHARED_MEMORY_H_
