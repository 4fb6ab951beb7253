// Plain passes over memory: as many vectors as the passes of LARS and LAMB read and write, with next to no arithmetic.
// Compiled when the benchmark runs, for the processor that it runs on (-march=native), which our own kernels are not.
#include <cstdint>

namespace {

constexpr int64_t kGroup = 64;  // elements: four lines of 64 bytes

template <int kVectors>
float read(float* const* vectors, int64_t size, int64_t ahead) {
  float sums[kGroup] = {};
  for (int64_t i = 0; i + kGroup <= size; i += kGroup) {
    for (int vector = 0; vector < kVectors; ++vector) {
      const float* from = vectors[vector] + i;
      for (int64_t line = 0; line < kGroup; line += 16) __builtin_prefetch(from + ahead + line);
      for (int j = 0; j < kGroup; ++j) sums[j] += from[j];
    }
  }
  float total = 0;
  for (const float sum : sums) total += sum;
  return total;
}

// Adds the last vector to each of the others.
template <int kWritten>
void update(float* const* vectors, int64_t size, int64_t ahead) {
  const float* gradient = vectors[kWritten];
  for (int64_t i = 0; i + kGroup <= size; i += kGroup) {
    for (int64_t line = 0; line < kGroup; line += 16) __builtin_prefetch(gradient + i + ahead + line);
    for (int vector = 0; vector < kWritten; ++vector) {
      float* to = vectors[vector] + i;
      for (int64_t line = 0; line < kGroup; line += 16) __builtin_prefetch(to + ahead + line, 1);
      for (int j = 0; j < kGroup; ++j) to[j] += gradient[i + j];
    }
  }
}

}  // namespace

extern "C" {

// `ahead` is how many elements before it is read memory is asked for; 0 leaves that to the processor.
float lars_floor_norms(float* const* vectors, int64_t size, int64_t ahead) { return read<2>(vectors, size, ahead); }
float lamb_floor_norms(float* const* vectors, int64_t size, int64_t ahead) { return read<4>(vectors, size, ahead); }
void lars_floor_update(float* const* vectors, int64_t size, int64_t ahead) { update<2>(vectors, size, ahead); }
void lamb_floor_update(float* const* vectors, int64_t size, int64_t ahead) { update<3>(vectors, size, ahead); }

}  // extern "C"
