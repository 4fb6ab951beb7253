// How a round spreads losses: blocks are transformed before it begins, and back after it has ended.
#include "endpoint.h"
#include "spread.h"

namespace hvds {

// Transforms the vector once the round is known, as each round has its own signs. Nothing reads it before the round
// begins.
void Endpoint::spread_vector(Lock& lock) {
  const float* own = vector_;
  lock.unlock();
  const uint64_t seed = seed_of(master_, inbox_.round());
  for (int64_t block = 0; block < ranks(); ++block) {
    const int64_t start = layout_.start_of(block);
    hvds_spread(own + start, spread_.get() + start, layout_.length_of(block), layout_.segment, seed + block);
  }
  lock.lock();
  vector_ = spread_.get();
}

void Endpoint::gather_up(int64_t round, float* mean) {
  const uint64_t seed = seed_of(master_, round);
  for (int64_t block = 0; block < ranks(); ++block) {
    float* start = mean + layout_.start_of(block);
    hvds_gather_up(start, start, layout_.length_of(block), layout_.segment, seed + block);
  }
}

}  // namespace hvds
