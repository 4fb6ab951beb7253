// Runs the kernels of quantize.h, magnitudes.h and coded.h on blocks of exactly the right length, under the sanitizers.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "common/cpu_features.h"
#include "exchange/coded.h"
#include "quantize/magnitudes.h"
#include "quantize/quantize.h"
#include "sanitizing.h"

namespace {

const int64_t kCounts[] = {0, 1, 3, 4, 5, 63, 64, 65, 1023, 1024, 1025, 5000, 400003};
const int64_t kBuckets[] = {1, 5, 64, 100, 1000, 1024};

// Each use has its own block, so that one byte too many is detected.
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

// Every third element of a vector of two matrices, which has one element more than these.
void check_one_bit(int64_t count, hvds_magnitude magnitude) {
  const int64_t size = 3 * count + 1;
  const int64_t ends[] = {size / 2, size}, starts[] = {5, 0}, widths[] = {7, size};
  const hvds_matrices matrices{2, ends, starts, widths};
  const auto indices = block<int32_t>(count), columns = block<int32_t>(count);
  const auto scratch = block<int32_t>(hvds_columns(&matrices));
  for (int64_t i = 0; i < count; ++i) indices[i] = static_cast<int32_t>(i % 2 == 0 ? 3 * i : size - 1 - 3 * i);
  const int64_t used = hvds_number_columns(indices.get(), count, &matrices, columns.get(), scratch.get());
  expect(0 <= used && used <= count, "no more columns than elements");
  const auto values = block<float>(count), decoded = block<float>(count), scales = block<float>(used);
  const auto codes = block<uint8_t>((count + 7) / 8);
  const auto sums = block<double>(2 * used);
  for (int64_t i = 0; i < count; ++i) values[i] = std::sin(static_cast<float>(i));
  expect(hvds_one_bit(values.get(), columns.get(), count, magnitude, used, codes.get(), scales.get(), sums.get()) == -1,
         "no fault");
  hvds_from_one_bit(codes.get(), scales.get(), columns.get(), count, decoded.get());
  for (int64_t i = 0; i < count; ++i) expect((decoded[i] < 0) == (values[i] < 0), "the sign is kept");
  if (count == 0) return;
  values[count - 1] = NAN;
  expect(hvds_one_bit(values.get(), columns.get(), count, magnitude, used, codes.get(), scales.get(), sums.get()) ==
             count - 1,
         "the faulty value is found");
  for (const int64_t outside : {int64_t{-1}, size}) {
    indices[count - 1] = static_cast<int32_t>(outside);
    expect(hvds_number_columns(indices.get(), count, &matrices, columns.get(), scratch.get()) == -count,
           "the misplaced index is found");
  }
}

void check_two_bits(int64_t count) {
  const auto values = block<float>(count), decoded = block<float>(count), scales = block<float>(HVDS_TWO_BITS_SCALES);
  const auto codes = block<uint8_t>((count + 3) / 4);
  for (int64_t i = 0; i < count; ++i) values[i] = std::sin(static_cast<float>(i));
  expect(hvds_two_bits(values.get(), count, codes.get(), scales.get()) == -1, "no fault");
  hvds_from_two_bits(codes.get(), scales.get(), count, decoded.get());
  for (int64_t i = 0; i < count; ++i) expect(std::fabs(decoded[i] - values[i]) <= 0.51f, "near one of two levels");
  if (count == 0) return;
  values[count - 1] = -INFINITY;
  expect(hvds_two_bits(values.get(), count, codes.get(), scales.get()) == count - 1, "the faulty value is found");
}

// Two messages, the second of which is empty.
void check_messages(int32_t count) {
  const int32_t bytes = count / 3;
  const int64_t words = 2 * HVDS_CODED_HEADER_WORDS + 2 * count + (bytes + 3) / 4;
  const auto messages = block<int32_t>(words), lengths = block<int32_t>(6), indices = block<int32_t>(count);
  const auto scales = block<float>(count);
  const auto codes = block<uint8_t>(bytes);
  for (int64_t i = 0; i < words; ++i) messages[i] = 0;
  messages[0] = messages[2] = count;
  messages[3] = bytes;
  bool nonfinite = true;
  expect(hvds_read_coded(messages.get(), words, 2, lengths.get(), &nonfinite) == -1 && !nonfinite, "they fit");
  hvds_unpack_coded(messages.get(), lengths.get(), 2, indices.get(), scales.get(), codes.get());
  for (int64_t length = 0; length < words; ++length) {
    const auto shorter = block<int32_t>(length);
    for (int64_t i = 0; i < length; ++i) shorter[i] = messages[i];
    const int64_t misfit = hvds_read_coded(shorter.get(), length, 2, lengths.get(), &nonfinite);
    expect(0 <= misfit && misfit < 2, "a message that ends too soon is found");
  }
}

}  // namespace

int main() {
  for (const int64_t count : kCounts) {
    check_one_bit(count, HVDS_MAGNITUDE_LEAST);
    check_one_bit(count, HVDS_MAGNITUDE_MEAN);
    check_two_bits(count);
    if (count <= 100) check_messages(static_cast<int32_t>(count));
  }
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
