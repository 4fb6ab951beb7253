// Values at given places of a float32 vector: a sparse message touches the elements it contains, and no others.
//
// Places are all different and may be in any order, so their order does not matter.
#ifndef HVD_SPARSE_OPS_PLACES_H_
#define HVD_SPARSE_OPS_PLACES_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Whether all places lie within a vector of this size.
int32_t hvds_places_fit(const int32_t* places, int64_t count, int64_t size);

// A vector stored in `count` consecutive pieces: piece i holds the elements from ends[i - 1] (or 0) to ends[i].
typedef struct hvds_pieces {
  float* const* memory;
  const int64_t* ends;
  int64_t count;
} hvds_pieces;

// vector[places[i]] = values[i]
void hvds_put_places(const hvds_pieces* vector, const float* values, const int32_t* places, int64_t count);

// vector[places[i]] += values[i]; denormal numbers are kept.
void hvds_add_places(float* vector, const float* values, const int32_t* places, int64_t count);

// values[i] = parameters[places[i]]; negated[places[i]] = -values[i]
void hvds_send_places(const float* parameters, float* negated, const int32_t* places, float* values, int64_t count);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_PLACES_H_
