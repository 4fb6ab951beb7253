// Averages vectors over ranks by datagrams (UDP), in bounded time, from the pieces that arrive (RPS, Yu et al. 2019,
// section 4; bounded time as in OptiReduce, NSDI 2025). The semantics are those of hvd_sparse/averaging/transports.py.
//
// A vector is cut into one block per rank, and each block into segments, one per datagram. Segments go to the block's
// owner, which averages each one as soon as all contributions are there or the phase is over, and sends the mean back.
// Nothing is ever retransmitted. Each datagram is authenticated (format.h); invalid ones are dropped and counted.
#ifndef HVD_SPARSE_OPS_DATAGRAMS_H_
#define HVD_SPARSE_OPS_DATAGRAMS_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { HVDS_DATAGRAM_RANKS = 64, HVDS_MESSAGE = 256 };

// What became of a datagram: exactly one of these.
enum hvds_datagrams_fate {
  HVDS_ACCEPTED,       // it was used
  HVDS_BAD_SIZE,       // too short, too long, or the wrong length for its kind
  HVDS_BAD_HEADER,     // of another format, job, sender or receiver
  HVDS_BAD_START,      // from or for a process that no longer exists
  HVDS_BAD_TAG,        // not from its claimed sender, or altered
  HVDS_REPLAYED,       // seen before, or so old that it may have been
  HVDS_ROUND,          // authentic, like all that follow, but of another round
  HVDS_PLACE,          // of a block that is not its sender's or receiver's, or of no segment
  HVDS_REPEATED,       // a segment that has already arrived
  HVDS_LATE,           // a segment whose phase was over, or had not begun
  HVDS_FATES
};

typedef struct hvds_datagrams_settings {
  int32_t ranks;       // 1 to HVDS_DATAGRAM_RANKS
  int32_t me;
  int64_t size;        // elements per vector, at least 1
  int32_t rotate;      // whether owners change from round to round
  int32_t datagram;    // largest datagram in bytes, without the IP and UDP headers
  int32_t spread;      // whether each block is sent as its Hadamard transform (spread.h); signs change every round
  int32_t offload;     // whether the system may split and join datagrams (UDP_SEGMENT, UDP_GRO)
  uint32_t start;      // start time of this process, in seconds; greater than that of this rank's previous process
  double rate;         // most bits per second; 0: as many as get through
  double multiple;     // a phase lasts at most this many times its bytes over the rate
  double slack;        // and at most this many times the median of recent ones
  double least;        // but may always last this many seconds
  double patience;     // seconds that a round waits for missing ranks
} hvds_datagrams_settings;

// Opens a socket at a numeric IPv4 or IPv6 address and a port, 0 for any.
//   port: receives the port in use.
// Returns the endpoint's number in this process, at least 1; or -errno, with a message [HVDS_MESSAGE].
int64_t hvds_datagrams_open(const hvds_datagrams_settings* settings, const char* address, int32_t* port,
                            char* message);

// Tells the endpoint the addresses of the others; it listens from then on.
//   addresses, ports, starts: [ranks]; the entries of `me` are ignored.
//   key: [16], secret, the same on all ranks; a new one for each meeting.
// Returns 0; or an errno, with a message.
int32_t hvds_datagrams_join(int64_t endpoint, const char* const* addresses, const int32_t* ports,
                            const uint32_t* starts, const uint8_t* key, char* message);

// Whether an endpoint is open, for vectors of this size and this many ranks.
int32_t hvds_datagrams_fits(int64_t endpoint, int64_t size, int64_t ranks);

// Averages a vector. One call at a time.
//   round:  the round to average, 0 to 2^32 - 1; a later one is averaged if the others are already there.
//   gives:  0 if this rank has no model yet: it contributes nothing, averages the others' contributions to its
//           block, and its vector only fills in where no mean arrives.
//   mean:   [size], must not be the vector's memory.
//   counts: [4][ranks], segments from each rank: expected and arrived in the reduce-scatter, then in the all-gather.
// Returns the round that was averaged; or -errno, with a message: ETIMEDOUT if a rank with gives = 0 has waited for
// `patience` and no other rank takes part.
int64_t hvds_datagrams_average(int64_t endpoint, const float* vector, int32_t gives, int64_t round, float* mean,
                               int64_t* counts, char* message);

// Statistics of an endpoint; times in seconds.
typedef struct hvds_datagrams_report {
  int64_t fates[HVDS_FATES];  // datagrams, since it joined
  int64_t sent;
  uint64_t silent;            // bit r: rank r is no longer waited for
  double rate;                // current sending rate, in bits per second
  // Of the last round:
  double waited;              // until all had arrived
  double scatter, scatter_limit;
  double gather, gather_limit;
} hvds_datagrams_report;

int32_t hvds_datagrams_report_of(int64_t endpoint, hvds_datagrams_report* report);

// Details of the last round; available until the next begins.
//   segment:      elements per segment.
//   contributors: [most segments per block], bit r: rank r's contribution is in the mean of that segment of the
//                 block that this rank owned; 0 if there is no such segment.
//   came:         [ranks][most segments per block], by block: 1 if this rank has the mean.
// Returns the most segments per block, and nothing else if the arrays are NULL; or -errno.
int64_t hvds_datagrams_record(int64_t endpoint, int64_t* segment, uint64_t* contributors, uint8_t* came);

// Tells the others that this rank leaves; an average in progress ends with an error.
void hvds_datagrams_close(int64_t endpoint);

// For tests: a separate window of counters (window.h).
typedef struct hvds_window hvds_window;
hvds_window* hvds_window_new(void);
int32_t hvds_window_accept(hvds_window* window, uint64_t counter);
void hvds_window_delete(hvds_window* window);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_DATAGRAMS_H_
