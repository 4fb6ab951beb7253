// SipHash-2-4 with 128 bits of output (Aumasson and Bernstein, INDOCRYPT 2012, and their reference code).
//
// A keyed hash made for short messages: of use as a tag as long as nobody else knows the key, and without a nonce that
// must never come twice. No library of ciphers is linked, as none is on every machine that compiles this.
#ifndef HVD_SPARSE_OPS_DATAGRAMS_SIPHASH_H_
#define HVD_SPARSE_OPS_DATAGRAMS_SIPHASH_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { HVDS_KEY_BYTES = 16, HVDS_TAG_BYTES = 16, HVDS_LANES = 8 };

// tag [16] of a message of any length under key [16].
void hvds_siphash(const uint8_t* key, const uint8_t* message, int64_t bytes, uint8_t* tag);

// The tags of `count` messages, 1 to HVDS_LANES, of equal length, each under a key of its own: that of messages[i] under
// keys[i] is tags + 16 * i. The same bits as one by one, sooner where the processor has AVX-512.
void hvds_siphash_many(const uint8_t* const* keys, const uint8_t* const* messages, int64_t count, int64_t bytes,
                       uint8_t* tags);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HVD_SPARSE_OPS_DATAGRAMS_SIPHASH_H_
