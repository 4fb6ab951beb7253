// CRC-32C, using the processor's instruction if there is one.
#include <array>
#include <cstring>

#include "checksums.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <nmmintrin.h>
#endif

namespace {

using Update = uint32_t (*)(uint32_t crc, const uint8_t* data, size_t length);

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78U : 0);
    table[byte] = crc;
  }
  return table;
}

uint32_t update_portable(uint32_t crc, const uint8_t* data, size_t length) {
  static constexpr std::array<uint32_t, 256> kTable = make_table();
  for (size_t i = 0; i < length; ++i) crc = crc >> 8 ^ kTable[(crc ^ data[i]) & 0xFF];
  return crc;
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("sse4.2"))) uint32_t update_sse42(uint32_t crc, const uint8_t* data, size_t length) {
  uint64_t wide = crc;
  for (; length >= 8; data += 8, length -= 8) {
    uint64_t word;
    std::memcpy(&word, data, sizeof word);
    wide = _mm_crc32_u64(wide, word);
  }
  return update_portable(static_cast<uint32_t>(wide), data, length);
}

Update choose() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("sse4.2") ? update_sse42 : update_portable;
}
#else
Update choose() { return update_portable; }
#endif

}  // namespace

extern "C" uint32_t datacache_crc32c(const void* data, size_t length) {
  static const Update update = choose();
  return ~update(~0U, static_cast<const uint8_t*>(data), length);
}
