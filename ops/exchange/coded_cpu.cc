#include "coded.h"

#include <cstring>

namespace hvds {
namespace {

int64_t message_words(int64_t entries, int64_t scales, int64_t bytes) {
  return HVDS_CODED_HEADER_WORDS + entries + scales + (bytes + 3) / 4;
}

// Copies `count` words, where 0 from a null pointer is allowed, and returns the end of the copy.
template <typename To>
To* copied(const int32_t* from, int64_t count, To* to) {
  if (count > 0) std::memcpy(to, from, static_cast<size_t>(count) * sizeof *to);
  return to + count;
}

}  // namespace
}  // namespace hvds

extern "C" int64_t hvds_read_coded(const int32_t* messages, int64_t words, int64_t ranks, int32_t* lengths,
                                   bool* nonfinite) {
  *nonfinite = false;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    if (words < HVDS_CODED_HEADER_WORDS) return rank;
    const int32_t entries = messages[0], flag = messages[1], scales = messages[2], bytes = messages[3];
    if (entries < 0 || (flag & ~1) != 0 || scales < 0 || bytes < 0) return rank;
    const int64_t length = hvds::message_words(entries, scales, bytes);
    if (words < length) return rank;
    lengths[rank] = entries;
    lengths[ranks + rank] = scales;
    lengths[2 * ranks + rank] = bytes;
    *nonfinite |= flag != 0;
    messages += length;
    words -= length;
  }
  return words == 0 ? -1 : ranks;
}

extern "C" void hvds_unpack_coded(const int32_t* messages, const int32_t* lengths, int64_t ranks, int32_t* indices,
                                  float* scales, uint8_t* codes) {
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int64_t entries = lengths[rank], numbers = lengths[ranks + rank], bytes = lengths[2 * ranks + rank];
    const int32_t* body = messages + HVDS_CODED_HEADER_WORDS;
    indices = hvds::copied(body, entries, indices);
    scales = hvds::copied(body + entries, numbers, scales);
    codes = hvds::copied(body + entries + numbers, bytes, codes);
    messages += hvds::message_words(entries, numbers, bytes);
  }
}
