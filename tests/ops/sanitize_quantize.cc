// Runs the kernels of quantize.h on blocks of exactly the right length, for the sanitizers to watch.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "common/cpu_features.h"
#include "quantize/quantize.h"
#include "sanitizing.h"

namespace {

const int64_t kCounts[] = {0, 1, 3, 4, 5, 63, 64, 65, 1023, 1024, 1025, 5000, 400003};
const int64_t kBuckets[] = {1, 5, 64, 100, 1000, 1024};

// A block of its own for each use, so that one byte too many is seen.
template <typename Element>
std::unique_ptr<Element[]> block(int64_t count) {
  return std::unique_ptr<Element[]>(new Element[static_cast<size_t>(count)]);
}

void check(int64_t count, const hvds_qsgd& coding, hvds_norm norm, const hvds_parallel* parallel) {
  const auto values = block<float>(count), decoded = block<float>(count);
  const auto codes = block<uint8_t>(hvds_quantize_bytes(count, &coding));
  const auto scales = block<float>(hvds_quantize_buckets(count, &coding));
  for (int64_t i = 0; i < count; ++i) values[i] = std::sin(static_cast<float>(i));
  expect(hvds_quantize(values.get(), count, &coding, norm, 7, codes.get(), scales.get(), parallel) == -1, "no fault");
  hvds_dequantize(codes.get(), scales.get(), count, &coding, decoded.get(), parallel);
  const auto levels = static_cast<float>((1 << (coding.bits - 1)) - 1);
  for (int64_t i = 0; i < count; ++i) {
    const float step = scales[i / coding.bucket] / levels;
    expect(std::fabs(decoded[i] - values[i]) <= 1.0001f * step, "within a step");
  }
  if (count == 0) return;
  values[count - 1] = INFINITY;
  expect(hvds_quantize(values.get(), count, &coding, norm, 7, codes.get(), scales.get(), parallel) ==
             (count - 1) / coding.bucket,
         "the faulty bucket is found");
}

}  // namespace

int main() {
  for (int isa = 0; isa <= hvds_isa_detected(); ++isa) {
    hvds_set_isa(isa);
    for (const hvds_parallel* parallel : {static_cast<const hvds_parallel*>(nullptr), &kThreads}) {
      for (const int64_t count : kCounts) {
        for (const int64_t bucket : kBuckets) {
          if (count > 5000 && bucket != 1000) continue;
          for (const int bits : {2, 4, 8}) {
            check(count, {bits, bucket}, HVDS_NORM_MAX, parallel);
            check(count, {bits, bucket}, HVDS_NORM_L2, parallel);
          }
        }
      }
    }
  }
  std::printf("checked %d results\n", checked);
  return 0;
}
