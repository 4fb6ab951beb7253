// Runs the kernels of servers/apply.h on blocks of exactly the right length, under the sanitizers.
#include <cstdio>
#include <memory>

#include "common/cpu_features.h"
#include "sanitizing.h"
#include "servers/apply.h"

namespace {

const int64_t kSizes[] = {0, 1, 7, 15, 16, 17, 65, 400003};

using Block = std::unique_ptr<float[]>;

Block filled(int64_t size, float value) {
  Block block(new float[size]);
  for (int64_t i = 0; i < size; ++i) block[i] = value;
  return block;
}

bool all_as_the_first(const Block& block, int64_t size) {
  for (int64_t i = 1; i < size; ++i) {
    if (block[i] != block[0]) return false;
  }
  return true;
}

// A step on every other element, the last one first.
void check_places(hvds_optimizer optimizer, int64_t size, const hvds_parallel* parallel) {
  const hvds_step step{optimizer, {0.5f, 0.5f, 0.25f, 0.25f, 0.5f}, true, 0.5f, 0.25f};
  const int64_t count = (size + 1) / 2;
  const Block weights = filled(size, 2), gradient = filled(count, 1);
  const std::unique_ptr<int32_t[]> places(new int32_t[count]);
  for (int64_t i = 0; i < count; ++i) places[i] = static_cast<int32_t>(2 * (count - 1 - i));
  Block slots[HVDS_MOST_SLOTS];
  float* pointers[HVDS_MOST_SLOTS] = {};
  for (int slot = 0; slot < hvds_slot_count(optimizer); ++slot) {
    slots[slot] = filled(size, slot == 0 ? 9 : 0.5f);
    pointers[slot] = slots[slot].get();
  }
  hvds_apply_places(&step, weights.get(), pointers, gradient.get(), places.get(), count, parallel);
  bool holds = true;
  for (int64_t i = 0; i < size; ++i) holds &= i % 2 == 0 ? weights[i] == weights[0] : weights[i] == 2;
  expect(holds && (size == 0 || weights[0] != 2), "every other weight has moved");
}

void check(hvds_optimizer optimizer, int64_t size, bool decays, const hvds_parallel* parallel) {
  const hvds_step step{optimizer, {0.5f, 0.5f, 0.25f, 0.25f, 0.5f}, decays, 0.5f, 0.25f};
  const Block weights = filled(size, 2), gradient = filled(size, 1);
  Block slots[HVDS_MOST_SLOTS];
  float* places[HVDS_MOST_SLOTS] = {};
  for (int slot = 0; slot < hvds_slot_count(optimizer); ++slot) {
    slots[slot] = filled(size, slot == 0 ? 9 : 0.5f);
    places[slot] = slots[slot].get();
  }
  hvds_apply(&step, weights.get(), places, gradient.get(), size, parallel);
  expect(all_as_the_first(weights, size), "the weights are alike");
  expect(size == 0 || (weights[0] == weights[0] && weights[0] != 2), "the weights have moved");
  for (const Block& slot : slots) expect(slot == nullptr || all_as_the_first(slot, size), "the slots are alike");
}

}  // namespace

int main() {
  for (int isa = 0; isa <= hvds_isa_detected(); ++isa) {
    hvds_set_isa(isa);
    for (const hvds_parallel* parallel : {static_cast<const hvds_parallel*>(nullptr), &kThreads}) {
      for (const int64_t size : kSizes) {
        for (int optimizer = 0; optimizer < HVDS_OPTIMIZERS; ++optimizer) {
          check_places(static_cast<hvds_optimizer>(optimizer), size, parallel);
          for (const bool decays : {false, true}) {
            check(static_cast<hvds_optimizer>(optimizer), size, decays, parallel);
          }
        }
      }
    }
  }
  std::printf("checked %d results\n", checked);
  return 0;
}
