#include "quantize.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "../common/cpu_features.h"
#include "../common/float_mode.h"
#include "quantize_kernels.h"

namespace hvds {
namespace {

constexpr int64_t kWorthATask = 131072;  // elements for which waking a thread pays off
constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

const QuantizeKernels& kernels_in_use() {
#if defined(__x86_64__) && defined(__GNUC__)
  if (hvds_isa() == HVDS_AVX512) return kAvx512Quantize;
  if (hvds_isa() == HVDS_AVX2) return kAvx2Quantize;
#endif
  return kBaseQuantize;
}

int64_t bucket_bytes(int64_t length, int bits) { return (length * bits + 7) / 8; }

// Not finite if an element is not.
float norm_of(const QuantizeKernels& kernels, const float* values, int64_t count, hvds_norm norm) {
  if (norm == HVDS_NORM_MAX) return float_of(kernels.largest(values, count));
  return static_cast<float>(std::sqrt(kernels.sum_of_squares(values, count)));
}

// Calls body(bucket, first value, values, first byte) for all buckets, in parallel.
template <typename Body>
void for_each_bucket(int64_t count, const hvds_qsgd& coding, const hvds_parallel* parallel, Body&& body) {
  const int64_t buckets = hvds_quantize_buckets(count, &coding);
  const int64_t most = std::max<int64_t>(1, std::min<int64_t>(thread_count(parallel), buckets));
  const int64_t tasks = std::clamp<int64_t>(count / kWorthATask, 1, most);
  const int64_t bytes = bucket_bytes(coding.bucket, coding.bits);
  parallel_for(parallel, static_cast<int>(tasks), [&](int task) {
    const StandardFloats standard;
    for (int64_t bucket = buckets * task / tasks; bucket < buckets * (task + 1) / tasks; ++bucket) {
      const int64_t first = bucket * coding.bucket;
      body(bucket, first, std::min(coding.bucket, count - first), bucket * bytes);
    }
  });
}

void note_lowest(std::atomic<int64_t>& lowest, int64_t number) {
  int64_t known = lowest.load();
  while (number < known && !lowest.compare_exchange_weak(known, number)) {
  }
}

}  // namespace
}  // namespace hvds

extern "C" int64_t hvds_quantize_buckets(int64_t count, const hvds_qsgd* coding) {
  return count / coding->bucket + (count % coding->bucket != 0);
}

extern "C" int64_t hvds_quantize_bytes(int64_t count, const hvds_qsgd* coding) {
  return count / coding->bucket * hvds::bucket_bytes(coding->bucket, coding->bits) +
         hvds::bucket_bytes(count % coding->bucket, coding->bits);
}

extern "C" int64_t hvds_quantize(const float* values, int64_t count, const hvds_qsgd* coding, hvds_norm norm,
                                 uint64_t seed, uint8_t* codes, float* scales, const hvds_parallel* parallel) {
  const hvds::QuantizeKernels& kernels = hvds::kernels_in_use();
  const auto encode = kernels.encode[hvds::coding_number(coding->bits)];
  const hvds::RandomKeys keys(seed);
  std::atomic<int64_t> faulty{hvds::kNone};
  hvds::for_each_bucket(count, *coding, parallel, [&](int64_t bucket, int64_t first, int64_t length, int64_t byte) {
    const float scale = hvds::norm_of(kernels, values + first, length, norm);
    if (!std::isfinite(scale)) return hvds::note_lowest(faulty, bucket);
    const hvds::BucketRule rule(scale, coding->bits);
    scales[bucket] = rule.scale;
    encode(values + first, length, rule, keys, static_cast<uint32_t>(first), codes + byte);
  });
  return faulty == hvds::kNone ? -1 : faulty.load();
}

extern "C" void hvds_dequantize(const uint8_t* codes, const float* scales, int64_t count, const hvds_qsgd* coding,
                                float* values, const hvds_parallel* parallel) {
  const auto decode = hvds::kernels_in_use().decode[hvds::coding_number(coding->bits)];
  hvds::for_each_bucket(count, *coding, parallel, [&](int64_t bucket, int64_t first, int64_t length, int64_t byte) {
    decode(codes + byte, length, hvds::BucketRule(scales[bucket], coding->bits), values + first);
  });
}
