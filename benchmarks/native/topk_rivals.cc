// What selection is measured against: plain passes over memory, Algorithm 1 as it is printed, and DGC's double sampling.
// Compiled when the benchmark runs, for the processor that it runs on (-march=native), which our own kernels are not.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "../../ops/common/parallel.h"

namespace {

struct Moments {
  float mean;
  float most;
};

// The mean in the order that ops/select/select.h documents, so that results can be compared to the bit.
Moments measure(const float* x, int64_t size) {
  double total = 0.0;
  float most = 0.0f;
  for (int64_t block = 0; block < size; block += 4096) {
    float lane[64] = {};
    const int64_t end = std::min(block + 4096, size);
    int64_t i = block;
    for (; i + 64 <= end; i += 64) {
      for (int j = 0; j < 64; ++j) lane[j] += std::fabs(x[i + j]);
      for (int j = 0; j < 64; ++j) most = std::max(most, std::fabs(x[i + j]));
    }
    for (; i < end; ++i) {
      lane[i % 64] += std::fabs(x[i]);
      most = std::max(most, std::fabs(x[i]));
    }
    for (int half = 32; half > 0; half /= 2) {
      for (int j = 0; j < half; ++j) lane[j] += lane[j + half];
    }
    total += lane[0];
  }
  return {float(total / double(size)), most};
}

int64_t count_from(const float* x, int64_t size, float threshold) {
  int64_t count = 0;
  for (int64_t start = 0; start < size; start += 1 << 20) {
    const int64_t end = std::min(start + (int64_t{1} << 20), size);
    int32_t some = 0;
    for (int64_t i = start; i < end; ++i) some += std::fabs(x[i]) >= threshold;
    count += some;
  }
  return count;
}

// Appends the indices with low <= |x| < high, without a branch that is hard to predict.
int64_t collect(const float* x, int64_t size, float low, float high, int32_t* indices) {
  int64_t count = 0;
  for (int64_t i = 0; i < size; ++i) {
    const float magnitude = std::fabs(x[i]);
    indices[count] = int32_t(i);
    count += magnitude >= low && magnitude < high;
  }
  return count;
}

uint64_t splitmix64(uint64_t seed) {
  uint64_t z = seed + 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

void ask_for_group(const float* group) {
  for (int lane = 0; lane < 64; lane += 16) __builtin_prefetch(group + lane);
}

void run_on_threads(void* context, int tasks, void (*task)(void* argument, int index), void* argument) {
  const int threads = *static_cast<int*>(context);
  std::vector<std::thread> others;
  for (int worker = 1; worker < threads; ++worker) {
    others.emplace_back([=] {
      for (int index = worker; index < tasks; index += threads) task(argument, index);
    });
  }
  for (int index = 0; index < tasks; index += threads) task(argument, index);
  for (std::thread& other : others) other.join();
}

}  // namespace

extern "C" {

// In these passes `ahead` is how many elements before it is read memory is asked for; 0 leaves that to the processor.

// The sum of |x|: the unit in which everything is given.
float bench_read(const float* x, int64_t size, int64_t ahead) {
  float sums[64] = {};
  for (int64_t i = 0; i + 64 <= size; i += 64) {
    ask_for_group(x + i + ahead);
    for (int j = 0; j < 64; ++j) sums[j] += std::fabs(x[i + j]);
  }
  float total = 0.0f;
  for (const float sum : sums) total += sum;
  return total;
}

// residual += gradient: 12 bytes an element.
void bench_add_in_place(const float* gradient, float* residual, int64_t size, int64_t ahead) {
  for (int64_t i = 0; i + 64 <= size; i += 64) {
    ask_for_group(gradient + i + ahead);
    ask_for_group(residual + i + ahead);
    for (int j = 0; j < 64; ++j) residual[i + j] += gradient[i + j];
  }
}

// out = residual + gradient, written past the caches; out is aligned to 64 bytes.
void bench_add(const float* gradient, const float* residual, float* out, int64_t size, int64_t ahead) {
  for (int64_t i = 0; i + 64 <= size; i += 64) {
    ask_for_group(gradient + i + ahead);
    ask_for_group(residual + i + ahead);
    for (int j = 0; j < 64; j += 4) {
      _mm_stream_ps(out + i + j, _mm_add_ps(_mm_loadu_ps(residual + i + j), _mm_loadu_ps(gradient + i + j)));
    }
  }
  _mm_sfence();
}

// The addition, and no more than the memory traffic of a selection whose threshold is only known when all was seen:
// `kept` entries are written on the way, evenly, without looking at them, then read and written where they end.
void bench_add_and_move(const float* gradient, const float* residual, float* out, int64_t size, int64_t kept,
                        float* candidates, int32_t* places, float* values, int32_t* indices, int64_t ahead) {
  int64_t moved = 0;
  for (int64_t i = 0; i + 64 <= size; i += 64) {
    ask_for_group(gradient + i + ahead);
    ask_for_group(residual + i + ahead);
    for (int j = 0; j < 64; j += 4) {
      _mm_stream_ps(out + i + j, _mm_add_ps(_mm_loadu_ps(residual + i + j), _mm_loadu_ps(gradient + i + j)));
    }
    for (const int64_t end = kept * (i + 64) / size; moved < end; ++moved) {
      candidates[moved] = gradient[i];
      places[moved] = int32_t(i);
    }
  }
  for (int64_t i = 0; i + 4 <= moved; i += 4) {  // the outputs are aligned to 64 bytes
    _mm_stream_ps(values + i, _mm_loadu_ps(candidates + i));
    _mm_stream_si128(reinterpret_cast<__m128i*>(indices + i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(places + i)));
  }
  _mm_sfence();
}

// Algorithm 1 as printed: mean and maximum, one counting pass for each sampling, and two passes that collect indices.
// Returns 0 where it has no answer. `indices` has room for size + 1.
int bench_literal_mstopk(const float* x, int64_t size, int64_t kept, int32_t samplings, uint64_t seed, float* values,
                         int32_t* indices) {
  const Moments of = measure(x, size);
  double left = 0.0, right = 1.0;
  int64_t k1 = 0, k2 = size;
  float thres1 = 0.0f, thres2 = 0.0f;
  bool found_low = false;
  for (int32_t sampling = 0; sampling < samplings; ++sampling) {
    const double ratio = left + (right - left) / 2;
    const float thres = float(double(of.mean) + ratio * (double(of.most) - double(of.mean)));
    const int64_t count = count_from(x, size, thres);
    if (count <= kept) {
      right = ratio;
      if (count > k1) k1 = count, thres1 = thres;
    } else {
      left = ratio;
      if (count < k2) k2 = count, thres2 = thres, found_low = true;
    }
  }
  if (k1 == 0 || (k1 < kept && !found_low)) return 0;
  collect(x, size, thres1, INFINITY, indices);
  if (k1 < kept) {
    std::vector<int32_t> between(size + 1);
    const int64_t count = collect(x, size, thres2, thres1, between.data());
    const uint64_t range = uint64_t(count - (kept - k1) + 1);
    const int64_t start = int64_t((static_cast<unsigned __int128>(splitmix64(seed)) * range) >> 64);
    std::copy_n(between.data() + start, kept - k1, indices + k1);
  }
  for (int64_t j = 0; j < kept; ++j) values[j] = x[indices[j]];
  return 1;
}

// Lin et al. (ICLR 2018), "double sampling": the threshold of a 1% sample, everything above it, and an exact selection
// among that where it is too much. Returns how many were selected, at most `kept`. `indices` has room for size + 1.
int64_t bench_dgc(const float* x, int64_t size, int64_t kept, float* values, int32_t* indices) {
  const int64_t sampled = std::max<int64_t>(size / 100, std::min<int64_t>(size, 100));
  std::vector<float> sample(sampled);
  for (int64_t j = 0; j < sampled; ++j) sample[j] = std::fabs(x[splitmix64(uint64_t(j)) % uint64_t(size)]);
  const int64_t rank = std::max<int64_t>(1, kept * sampled / size);
  std::nth_element(sample.begin(), sample.begin() + rank - 1, sample.end(), std::greater<float>());
  int64_t count = collect(x, size, sample[rank - 1], INFINITY, indices);
  if (count > kept) {
    std::nth_element(indices, indices + kept, indices + count,
                     [x](int32_t a, int32_t b) { return std::fabs(x[a]) > std::fabs(x[b]); });
    count = kept;
  }
  for (int64_t j = 0; j < count; ++j) values[j] = x[indices[j]];
  return count;
}

// An executor for our kernels.
const hvds_parallel* bench_threads(int threads) {
  static int counts[65];
  static hvds_parallel executors[65];
  counts[threads] = threads;
  executors[threads] = hvds_parallel{&counts[threads], threads, run_on_threads};
  return &executors[threads];
}

}  // extern "C"
