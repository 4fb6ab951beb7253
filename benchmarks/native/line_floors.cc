// Reads and writes lines of 64 bytes of several vectors, in ascending order, with next to no arithmetic. Compiled when
// the benchmark runs, for the processor that it runs on.
#include <cstdint>

// `places` has one element of each line, and as many more as are asked for ahead; 0 leaves asking to the processor.
extern "C" void touch_lines(float* const* vectors, int64_t count, const int32_t* places, int64_t lines, int64_t ahead) {
  for (int64_t i = 0; i < lines; ++i) {
    for (int64_t vector = 0; vector < count; ++vector) {
      if (ahead > 0) __builtin_prefetch(vectors[vector] + places[i + ahead], 1);
      vectors[vector][places[i]] += 1;
    }
  }
}
