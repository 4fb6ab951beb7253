#include "cpu_features.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

int detect() {
#if defined(__x86_64__) && defined(__GNUC__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (avx2 && avx512) return HVDS_AVX512;
  if (avx2) return HVDS_AVX2;
#endif
  return HVDS_SSE2;
}

int requested(int detected) {
  static constexpr const char* kNames[] = {"sse2", "avx2", "avx512"};
  const char* wanted = std::getenv("HVD_SPARSE_ISA");
  if (wanted == nullptr || *wanted == '\0') return detected;
  for (int level = HVDS_SSE2; level <= HVDS_AVX512; ++level) {
    if (std::strcmp(wanted, kNames[level]) != 0) continue;
    if (level <= detected) return level;
    std::fprintf(stderr, "hvd_sparse: HVD_SPARSE_ISA=%s, but this processor offers only %s, which is used.\n", wanted,
                 kNames[detected]);
    return detected;
  }
  std::fprintf(stderr, "hvd_sparse: HVD_SPARSE_ISA is expected to be sse2, avx2 or avx512, got \"%s\"; %s is used.\n",
               wanted, kNames[detected]);
  return detected;
}

int measured_bytes_ahead() {
#if defined(__x86_64__) && defined(__GNUC__)
  __builtin_cpu_init();
  if (__builtin_cpu_is("amd")) return 256;
#endif
  return 2048;
}

std::atomic<int>& level_in_use() {
  static std::atomic<int> level{requested(hvds_isa_detected())};
  return level;
}

}  // namespace

extern "C" int hvds_isa_detected(void) {
  static const int detected = detect();
  return detected;
}

extern "C" int hvds_bytes_ahead(void) {
  static const int bytes = measured_bytes_ahead();
  return bytes;
}

extern "C" int hvds_isa(void) { return level_in_use().load(std::memory_order_relaxed); }

extern "C" int hvds_set_isa(int level) {
  if (level < HVDS_SSE2 || level > hvds_isa_detected()) return -1;
  level_in_use().store(level, std::memory_order_relaxed);
  return 0;
}
