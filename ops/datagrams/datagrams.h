// Averages vectors over ranks by datagrams (UDP), in bounded time, from those pieces that arrive (RPS, Yu et al. 2019,
// section 4; bounded time as in OptiReduce, NSDI 2025). The law is that of hvd_sparse/averaging/transports.py.
//
// A vector is cut into a block for each rank and each block into segments, one a datagram. Segments go to the block's
// owner, who averages each as soon as all contributions are there or the phase is over, and sends the mean back.
// Nothing is ever sent again. Each datagram is authenticated (format.h); what is not as it must be is dropped and
// counted.
#ifndef HVD_SPARSE_OPS_DATAGRAMS_H_
#define HVD_SPARSE_OPS_DATAGRAMS_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { HVDS_DATAGRAM_RANKS = 64, HVDS_MESSAGE = 256 };

// What becomes of a datagram: one of these.
enum hvds_datagrams_fate {
  HVDS_ACCEPTED,       // it was of use
  HVDS_BAD_SIZE,       // too short, too long, or not as long as its kind
  HVDS_BAD_HEADER,     // of another format, job, sender or receiver
  HVDS_BAD_START,      // of or for a process that is no more
  HVDS_BAD_TAG,        // not from who it says, or altered
  HVDS_REPLAYED,       // seen before, or so old that it may have been
  HVDS_ROUND,          // authentic, as what follows, but of another round
  HVDS_PLACE,          // of another block than its sender or receiver has, or of no segment
  HVDS_REPEATED,       // a segment that is there already
  HVDS_LATE,           // a segment whose phase was over, or has not begun
  HVDS_FATES
};

typedef struct hvds_datagrams_settings {
  int32_t ranks;       // 1 to HVDS_DATAGRAM_RANKS
  int32_t me;
  int64_t size;        // elements of a vector, at least 1
  int32_t rotate;      // whether owners change from round to round
  int32_t datagram;    // bytes of a datagram at most, without the headers of IP and UDP
  int32_t spread;      // whether what travels is a Hadamard transform of each block (spread.h); signs change by round
  int32_t offload;     // whether the system may cut and join datagrams (UDP_SEGMENT, UDP_GRO)
  uint32_t start;      // when this process was started, in seconds; greater than that of a former one of this rank
  double rate;         // bits per second at most; 0: as many as arrive
  double multiple;     // a phase lasts this many times its bytes over the rate at most
  double slack;        // and this many times the median of recent ones
  double least;        // but may always last so many seconds
  double patience;     // seconds that a round waits for ranks that have not come
} hvds_datagrams_settings;

// Opens a socket at a numeric address, IPv4 or IPv6, and a port, 0 for any.
//   port: which one it is.
// Returns the endpoint's number in this process, at least 1; or -errno, with a message [HVDS_MESSAGE].
int64_t hvds_datagrams_open(const hvds_datagrams_settings* settings, const char* address, int32_t* port,
                            char* message);

// Tells it of the others; it listens from then on.
//   addresses, ports, starts: [ranks]; those of `me` are not used.
//   key: [16], secret, the same on all ranks; a new one for each meeting.
// Returns 0; or an errno, with a message.
int32_t hvds_datagrams_join(int64_t endpoint, const char* const* addresses, const int32_t* ports,
                            const uint32_t* starts, const uint8_t* key, char* message);

// Whether an endpoint is open, for vectors of this size and so many ranks.
int32_t hvds_datagrams_fits(int64_t endpoint, int64_t size, int64_t ranks);

// Averages a vector. One call at a time.
//   round:  the one to be averaged, 0 to 2^32 - 1; a later one where the others are there already.
//   gives:  0 where this rank has no model yet: it contributes nothing, averages for the others what they send of its
//           block, and its vector is only what stays where no mean comes.
//   mean:   [size], another memory than the vector.
//   counts: [4][ranks], segments from each rank: expected and arrived in the reduce-scatter, in the all-gather.
// Returns the round that was averaged; or -errno, with a message: ETIMEDOUT where a rank that gives nothing has waited
// for `patience` and no other rank takes part.
int64_t hvds_datagrams_average(int64_t endpoint, const float* vector, int32_t gives, int64_t round, float* mean,
                               int64_t* counts, char* message);

// What an endpoint has seen; times in seconds.
typedef struct hvds_datagrams_report {
  int64_t fates[HVDS_FATES];  // datagrams, since it joined
  int64_t sent;
  uint64_t silent;            // bit r: nobody waits for rank r
  double rate;                // bits per second at which it sends now
  // Of the last round:
  double waited;              // until all had come
  double scatter, scatter_limit;
  double gather, gather_limit;
} hvds_datagrams_report;

int32_t hvds_datagrams_report_of(int64_t endpoint, hvds_datagrams_report* report);

// What the last round was made of, until the next begins.
//   segment:      elements of a segment.
//   contributors: [segments of a block at most], bit r: rank r's contribution is in the mean of that segment of the
//                 block that this rank owned; 0 where there is no such segment.
//   came:         [ranks][segments of a block at most], by block: 1 where this rank has the mean.
// Returns the segments of a block at most; with NULL in place of arrays, nothing else. Or -errno.
int64_t hvds_datagrams_record(int64_t endpoint, int64_t* segment, uint64_t* contributors, uint8_t* came);

// Says good-bye; an average that runs ends with an error.
void hvds_datagrams_close(int64_t endpoint);

// For tests: a window of counters (window.h) of its own.
typedef struct hvds_window hvds_window;
hvds_window* hvds_window_new(void);
int32_t hvds_window_accept(hvds_window* window, uint64_t counter);
void hvds_window_delete(hvds_window* window);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_DATAGRAMS_H_
