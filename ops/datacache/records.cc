#include "records.h"

#include "checksums.h"

extern "C" {

void datacache_records_checksums(const uint8_t* rows, uint64_t row_bytes, uint64_t count, const uint64_t* indices,
                                 const int64_t* labels, uint64_t* checksums) {
  for (uint64_t i = 0; i < count; ++i) {
    checksums[i] = datacache_xxh3(rows + i * row_bytes, row_bytes, datacache_record_seed(indices[i], labels[i]));
  }
}

uint64_t datacache_records_place(const uint8_t* rows, uint64_t row_bytes, uint64_t count, const uint64_t* indices,
                                 const int64_t* labels, const uint64_t* checksums, uint8_t* to,
                                 const uint64_t* places, uint8_t* sound) {
  uint64_t total = 0;
  for (uint64_t i = 0; i < count; ++i) {
    uint8_t* place = to + places[i] * row_bytes;
    const uint64_t seed = datacache_record_seed(indices[i], labels[i]);
    sound[i] = datacache_xxh3_copy(place, rows + i * row_bytes, row_bytes, seed) == checksums[i];
    total += sound[i];
  }
  return total;
}

}  // extern "C"
