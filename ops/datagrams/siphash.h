// SipHash-2-4 with 128 bits of output (Aumasson and Bernstein, INDOCRYPT 2012, and their reference code).
//
// A keyed hash designed for short messages: secure as a tag while the key is secret, and without a nonce that must
// never repeat. No cryptographic library is linked, because not every machine that compiles this has one.
#ifndef HVD_SPARSE_OPS_DATAGRAMS_SIPHASH_H_
#define HVD_SPARSE_OPS_DATAGRAMS_SIPHASH_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { HVDS_KEY_BYTES = 16, HVDS_TAG_BYTES = 16, HVDS_LANES = 8 };

// Computes the tag [16] of a message of any length under key [16].
void hvds_siphash(const uint8_t* key, const uint8_t* message, int64_t bytes, uint8_t* tag);

// The tags of `count` messages, 1 to HVDS_LANES, of equal length, each under its own key: the tag of messages[i] under
// keys[i] is at tags + 16 * i. The same bits as one at a time, but faster with AVX-512.
void hvds_siphash_many(const uint8_t* const* keys, const uint8_t* const* messages, int64_t count, int64_t bytes,
                       uint8_t* tags);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_DATAGRAMS_SIPHASH_H_
