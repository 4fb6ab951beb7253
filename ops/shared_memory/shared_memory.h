// Ranks of one host exchange vectors through memory that all of them map.
//
// Each rank has a control block and, during an exchange, an inbox: anonymous memory (memfd) that the others open via
// /proc/PID/fd. Nothing has a name in a file system, so a killed process leaves nothing behind, the size of /dev/shm
// does not matter, and only processes of the same user have access. Each sender writes its piece into the receivers'
// inboxes, where the receiver uses it in place.
#ifndef HVD_SPARSE_OPS_SHARED_MEMORY_H_
#define HVD_SPARSE_OPS_SHARED_MEMORY_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { HVDS_MAX_NEIGHBOURS = 64 };

// Creates this rank's side of a group of `members` ranks of one host, in which it is number `me`.
//   address [3]: what the others need to find this rank.
// Returns the group's number in this process, at least 1, or -errno.
int64_t hvds_neighbours_open(int32_t members, int32_t me, int64_t* address);

// Connects to the others. Every member must have opened before.
//   addresses: [members][3], in the order of the members.
// Returns 0 or an errno: the group is then unusable and should be closed.
int32_t hvds_neighbours_join(int64_t group, const int64_t* addresses);

// What exchanges of a group look at while they wait; set it before the first one.
//   patience: seconds after which a member whose process stands still (stopped, traced, without memory) counts as lost;
//             0 is never. A member whose process runs is waited for however long it takes.
//   ended:    returns whether this process can no longer exchange by its other ways; NULL if that is not known.
// Returns 0 or EINVAL.
int32_t hvds_neighbours_watch(int64_t group, double patience, int32_t (*ended)(void));

// Tells the others that this rank leaves; running and later exchanges fail, on this rank and on the others.
void hvds_neighbours_close(int64_t group);

// The result of an exchange; stays in memory until it is released.
typedef struct hvds_received hvds_received;

// Sends a piece to each member and waits for theirs; may be called for several channels at once, each from its own
// thread.
//   channel:  the same on every member, unique among the exchanges in flight; called equally often on every member.
//   pieces:   [members], `bytes` [members] long; written at byte `offsets` [members] of that member's inbox.
//   expected: the size of this member's inbox in bytes: all that is sent to it.
//   message:  [256], the reason of a failure.
// Returns NULL on failure: a member has left, ended or stands still, this process cannot exchange any more, or there is
// no memory.
hvds_received* hvds_exchange(int64_t group, const char* channel, const void* const* pieces, const int64_t* bytes,
                             const int64_t* offsets, int64_t expected, char* message);

// The inbox: `expected` bytes, aligned to a page.
void* hvds_received_data(const hvds_received* received);
void hvds_received_release(hvds_received* received);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_SHARED_MEMORY_H_
