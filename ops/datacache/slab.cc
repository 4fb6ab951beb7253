#include "slab.h"

#include <atomic>
#include <cstring>

#include "checksums.h"

namespace {

constexpr uint64_t kHead = 4096, kNext = 2048, kAlignment = 64, kAhead = 512;

using Word = std::atomic<uint64_t>;
static_assert(sizeof(Word) == 8 && Word::is_always_lock_free, "words are shared between processes");

// All words except the state are accessed with relaxed order between two reads of the state, as in a sequence lock.
struct Entry {
  Word state;   // odd: published; each change increments it
  Word offset;  // from the base; 0 before space has been reserved
  Word length;
  Word checksum;  // of the record; before it is published, of the reservation
  Word label;
};
static_assert(sizeof(Entry) == 40, "part of the layout");

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;

uint64_t round_up(uint64_t size, uint64_t unit) { return (size + unit - 1) / unit * unit; }

Word& next_place(const datacache_slab* slab) { return *reinterpret_cast<Word*>(slab->base + kNext); }

// The entry of a sample; nullptr if it has none.
Entry* entry_of(const datacache_slab* slab, uint64_t index) {
  if (index < slab->first || index - slab->first >= slab->slots) return nullptr;
  return reinterpret_cast<Entry*>(slab->base + kHead) + (index - slab->first);
}

bool is_inside(const datacache_slab* slab, uint64_t offset, uint64_t length) {
  return offset % kAlignment == 0 && offset >= datacache_slab_overhead(slab->slots) && offset <= slab->bytes &&
         length <= slab->bytes - offset;
}

uint64_t proof_of_place(uint64_t index, uint64_t offset, uint64_t length) {
  const uint64_t place[2] = {offset, length};
  return datacache_xxh3(place, sizeof place, ~index);
}

// Allocates space for a payload; 0 if there is none left.
uint64_t take_place(const datacache_slab* slab, uint64_t length) {
  Word& next = next_place(slab);
  uint64_t offset = next.load(kRelaxed);
  do {
    if (!is_inside(slab, offset, length)) return 0;
  } while (!next.compare_exchange_weak(offset, offset + datacache_slab_footprint(length), kRelaxed));
  return offset;
}

// The space for a record: what a writer that was killed had reserved for it, or new space; 0 if there is none.
uint64_t reserve(const datacache_slab* slab, Entry* entry, uint64_t index, uint64_t length) {
  const uint64_t before = entry->offset.load(kRelaxed);
  const uint64_t proof = proof_of_place(index, before, length);
  if (is_inside(slab, before, length) && entry->checksum.load(kRelaxed) == proof) return before;
  const uint64_t offset = take_place(slab, length);
  if (offset == 0) return 0;
  entry->offset.store(offset, kRelaxed);
  entry->checksum.store(proof_of_place(index, offset, length), kRelaxed);
  return offset;
}

// Prefetches the beginning of a record, which the processor cannot predict.
void ask_ahead(const datacache_slab* slab, uint64_t index) {
  const Entry* entry = entry_of(slab, index);
  if (entry == nullptr) return;
  const uint64_t offset = entry->offset.load(kRelaxed);
  if (!is_inside(slab, offset, kAhead)) return;
  for (uint64_t line = 0; line < kAhead; line += kAlignment) __builtin_prefetch(slab->base + offset + line);
}

datacache_found copy_out(const datacache_slab* slab, uint64_t index, uint8_t* row, uint64_t row_bytes, int64_t* label) {
  const Entry* entry = entry_of(slab, index);
  if (entry == nullptr) return DATACACHE_MISSING;
  const uint64_t state = entry->state.load(kAcquire);
  if (state % 2 == 0) return DATACACHE_MISSING;
  const uint64_t offset = entry->offset.load(kRelaxed), length = entry->length.load(kRelaxed);
  const uint64_t checksum = entry->checksum.load(kRelaxed);
  *label = static_cast<int64_t>(entry->label.load(kRelaxed));
  const bool fits = length == row_bytes && is_inside(slab, offset, length);
  const uint64_t found =
      fits ? datacache_xxh3_copy(row, slab->base + offset, length, datacache_record_seed(index, *label)) : ~checksum;
  std::atomic_thread_fence(kAcquire);
  if (entry->state.load(kRelaxed) != state) return DATACACHE_MISSING;  // removed meanwhile
  return found == checksum ? DATACACHE_FOUND : DATACACHE_DAMAGED;
}

}  // namespace

extern "C" {

uint64_t datacache_slab_overhead(uint64_t slots) { return round_up(kHead + slots * sizeof(Entry), 4096); }

uint64_t datacache_slab_footprint(uint64_t length) { return round_up(length, kAlignment); }

void datacache_slab_format(const datacache_slab* slab) {
  next_place(slab).store(datacache_slab_overhead(slab->slots), kRelease);
}

uint64_t datacache_slab_used(const datacache_slab* slab) { return next_place(slab).load(kRelaxed); }

int datacache_slab_publish(const datacache_slab* slab, uint64_t index, const void* payload, uint64_t length,
                           int64_t label) {
  Entry* entry = entry_of(slab, index);
  if (entry == nullptr) return -1;
  const uint64_t state = entry->state.load(kAcquire);
  if (state % 2 == 1) return 1;
  const uint64_t offset = reserve(slab, entry, index, length);
  if (offset == 0) return 0;
  const uint64_t checksum =
      datacache_xxh3_copy(slab->base + offset, payload, length, datacache_record_seed(index, label));
  entry->length.store(length, kRelaxed);
  entry->label.store(static_cast<uint64_t>(label), kRelaxed);
  entry->checksum.store(checksum, kRelaxed);
  entry->state.store(state + 1, kRelease);
  return 1;
}

void datacache_slab_lengths(const datacache_slab* slab, const uint64_t* indices, uint64_t count, uint64_t* lengths) {
  for (uint64_t i = 0; i < count; ++i) {
    const Entry* entry = entry_of(slab, indices[i]);
    const bool held = entry != nullptr && entry->state.load(kAcquire) % 2 == 1;
    lengths[i] = held ? entry->length.load(kRelaxed) : DATACACHE_NONE;
  }
}

void datacache_slab_forget(const datacache_slab* slab, uint64_t index) {
  Entry* entry = entry_of(slab, index);
  if (entry == nullptr) return;
  const uint64_t state = entry->state.load(kAcquire);
  if (state % 2 == 0) return;
  entry->state.store(state + 1, kRelaxed);
  std::atomic_thread_fence(kRelease);  // before any later write to the entry
  entry->offset.store(0, kRelaxed);
}

uint64_t datacache_slab_gather(const datacache_slab* slab, const uint64_t* indices, uint64_t count, uint8_t* rows,
                               uint64_t row_bytes, int64_t* labels, uint8_t* found) {
  uint64_t total = 0;
  for (uint64_t i = 0; i < count; ++i) {
    if (i + 1 < count) ask_ahead(slab, indices[i + 1]);
    found[i] = copy_out(slab, indices[i], rows + i * row_bytes, row_bytes, labels + i);
    total += found[i] == DATACACHE_FOUND;
  }
  return total;
}

}  // extern "C"
