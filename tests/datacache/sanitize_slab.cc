// Runs the kernels of the memory level on blocks of exactly the right length, and from several threads, under the
// sanitizers; and compares the implementations of the checksum.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "lent_slabs.h"
#include "slab.h"
#include "xxh3.cc"  // for instruction sets that would not be chosen on this machine

namespace {

constexpr uint64_t kSlots = 24, kFirst = 5, kRow = 1500, kRounds = 300;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::printf("failed: %s\n", what);
  std::exit(1);
}

std::vector<uint8_t> payload_of(uint64_t index, size_t length) {
  std::mt19937_64 numbers(index);
  std::vector<uint8_t> bytes(length);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(numbers());
  return bytes;
}

void compare(Accumulate plain, Accumulate copying, size_t stripes) {
  const std::vector<uint8_t> input = payload_of(stripes, stripes * kStripe);
  std::vector<uint8_t> copy(input.size());
  uint64_t expected[8] = {1, 2, 3, 4, 5, 6, 7, 8}, lanes[8], copied[8];
  std::memcpy(lanes, expected, sizeof lanes);
  std::memcpy(copied, expected, sizeof copied);
  accumulate_portable<false>(expected, input.data(), nullptr, kSecret, stripes);
  plain(lanes, input.data(), nullptr, kSecret, stripes);
  copying(copied, input.data(), copy.data(), kSecret, stripes);
  expect(std::memcmp(lanes, expected, sizeof lanes) == 0, "an instruction set gives another checksum");
  expect(std::memcmp(copied, expected, sizeof copied) == 0, "copying gives another checksum");
  expect(copy == input, "the copy differs");
}

void compare_instruction_sets() {
  for (size_t stripes = 0; stripes < 70; ++stripes) {
    compare(accumulate_portable<false>, accumulate_portable<true>, stripes);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) compare(accumulate_avx2<false>, accumulate_avx2<true>, stripes);
    if (__builtin_cpu_supports("avx512f")) compare(accumulate_avx512<false>, accumulate_avx512<true>, stripes);
#endif
  }
}

void publish_short_and_long_records(const datacache_slab* slab) {
  for (uint64_t i = 0; i < 12; ++i) {
    const std::vector<uint8_t> payload = payload_of(i, i * 100);
    expect(datacache_slab_publish(slab, kFirst + i, payload.data(), payload.size(), -7) == 1, "it fits");
    std::unique_ptr<uint8_t[]> row(new uint8_t[payload.size()]);
    const uint64_t index = kFirst + i;
    int64_t label = 0;
    uint8_t found = 0;
    datacache_slab_gather(slab, &index, 1, row.get(), payload.size(), &label, &found);
    expect(found == DATACACHE_FOUND && label == -7, "it is found");
    expect(std::equal(payload.begin(), payload.end(), row.get()), "its bytes are the same");
    datacache_slab_gather(slab, &index, 1, row.get(), 0, &label, &found);
    expect(found == (i == 0 ? DATACACHE_FOUND : DATACACHE_DAMAGED), "another length is damage");
    datacache_slab_forget(slab, index);
  }
  const uint64_t outside[] = {0, kFirst - 1, kFirst + kSlots, UINT64_MAX};
  uint8_t row[4], found[4];
  int64_t labels[4];
  expect(datacache_slab_gather(slab, outside, 4, row, 1, labels, found) == 0, "those outside are not found");
}

// Arbitrary words in an entry, including ones that point to the last bytes of the memory or past its end.
void read_broken_entries(const datacache_slab* slab) {
  std::mt19937_64 numbers(3);
  uint64_t* entry = reinterpret_cast<uint64_t*>(slab->base + 4096);
  const uint64_t near_the_end[] = {slab->bytes - 64, slab->bytes, slab->bytes - kRow, UINT64_MAX, UINT64_MAX - 63};
  std::unique_ptr<uint8_t[]> rows(new uint8_t[2 * kRow]);
  for (int turn = 0; turn < 3000; ++turn) {
    entry[0] = 1;
    entry[1] = turn % 2 ? near_the_end[numbers() % 5] / 64 * 64 : numbers() % (2 * slab->bytes);
    entry[2] = turn % 3 ? kRow : numbers();
    const uint64_t indices[] = {kFirst, kFirst};
    uint8_t found[2];
    int64_t labels[2];
    datacache_slab_gather(slab, indices, 2, rows.get(), kRow, labels, found);
    expect(found[0] == DATACACHE_DAMAGED && found[1] == DATACACHE_DAMAGED, "a broken entry is damage");
  }
  std::memset(entry, 0, 40);
}

// Writers of different slots, readers of all, and an owner who takes the slab back while they read.
void read_while_it_is_filled_and_taken_back(const datacache_slab* slab) {
  const int64_t number = datacache_lend(slab);
  std::atomic<uint64_t> served{0};
  std::vector<std::thread> threads;
  for (uint64_t part = 0; part < 2; ++part) {
    threads.emplace_back([=] {
      for (uint64_t i = part; i < kSlots; i += 2) {
        const std::vector<uint8_t> payload = payload_of(i, kRow);
        expect(datacache_slab_publish(slab, kFirst + i, payload.data(), kRow, i) == 1, "it fits");
      }
    });
    threads.emplace_back([number, &served] {
      std::unique_ptr<uint8_t[]> rows(new uint8_t[kSlots * kRow]);
      uint64_t indices[kSlots];
      uint8_t found[kSlots];
      int64_t labels[kSlots];
      for (uint64_t i = 0; i < kSlots; ++i) indices[i] = kFirst + i;
      datacache_slab lent;
      for (uint64_t round = 0; round < kRounds && datacache_borrow(number, &lent); ++round) {
        const uint64_t count = datacache_slab_gather(&lent, indices, kSlots, rows.get(), kRow, labels, found);
        for (uint64_t i = 0; i < kSlots; ++i) {
          expect(found[i] != DATACACHE_DAMAGED, "nothing is damaged");
          if (found[i] != DATACACHE_FOUND) continue;
          expect(labels[i] == static_cast<int64_t>(i), "the label is its own");
          expect(std::memcmp(rows.get() + i * kRow, payload_of(i, kRow).data(), kRow) == 0, "so are the bytes");
        }
        datacache_give_back(number, count);
        served += count;
      }
    });
  }
  threads[0].join();
  threads[2].join();
  datacache_take_back(number);
  datacache_slab none;
  expect(!datacache_borrow(number, &none) && !datacache_borrow(number + 1, &none), "nobody can borrow it any more");
  threads[1].join();
  threads[3].join();
  expect(datacache_served(number) == served && datacache_served(-1) == 0, "what was served is counted");
}

}  // namespace

int main() {
  compare_instruction_sets();
  const uint64_t bytes = datacache_slab_overhead(kSlots) + 2 * kSlots * datacache_slab_footprint(kRow);
  std::unique_ptr<uint64_t[]> memory(new uint64_t[bytes / 8]());
  const datacache_slab slab{reinterpret_cast<uint8_t*>(memory.get()), bytes, kFirst, kSlots};
  datacache_slab_format(&slab);
  publish_short_and_long_records(&slab);
  read_broken_entries(&slab);
  read_while_it_is_filled_and_taken_back(&slab);
  std::puts("clean");
}
