// Shared by the programs that test ops/datagrams/: ranks with known vectors, and checks of their results.
#ifndef HVD_SPARSE_TESTS_OPS_DATAGRAM_JOB_H_
#define HVD_SPARSE_TESTS_OPS_DATAGRAM_JOB_H_

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "datagrams/datagrams.h"

namespace {

constexpr double kLong = 300;  // seconds: for tests that must not depend on how busy the machine is
const uint8_t kKey[16] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};

struct Job {
  int ranks;
  int64_t rounds;
  int64_t size;
  bool spread = false;  // then means are right only up to rounding
};

[[noreturn]] void fail(const std::string& why, int rank) {
  std::fprintf(stderr, "rank %d: %s\n", rank, why.c_str());
  std::_Exit(1);
}

float value(int rank, int64_t round, int64_t i) {
  uint64_t mixed = (static_cast<uint64_t>(i) * 64 + rank) * 1000003 + round;
  mixed ^= mixed >> 29;
  mixed *= 0xbf58476d1ce4e5b9u;
  mixed ^= mixed >> 32;
  return static_cast<float>(static_cast<int64_t>(mixed % 2000001) - 1000000) * 1e-3f;
}

std::vector<float> vector_of(const Job& job, int rank, int64_t round) {
  std::vector<float> vector(job.size);
  for (int64_t i = 0; i < job.size; ++i) vector[i] = value(rank, round, i);
  return vector;
}

float mean_of(uint64_t contributors, int ranks, int64_t round, int64_t i) {
  float sum = 0;
  bool first = true;
  for (int rank = 0; rank < ranks; ++rank) {
    if ((contributors >> rank & 1) == 0) continue;
    sum = first ? value(rank, round, i) : sum + value(rank, round, i);
    first = false;
  }
  return sum / static_cast<float>(__builtin_popcountll(contributors));
}

hvds_datagrams_settings settings_of(const Job& job, int rank) {
  hvds_datagrams_settings settings{};
  settings.ranks = job.ranks;
  settings.me = rank;
  settings.size = job.size;
  settings.rotate = 1;
  settings.datagram = 1472;
  settings.offload = rank % 2;
  settings.spread = job.spread ? 1 : 0;
  settings.start = 1;
  settings.multiple = 1;
  settings.slack = settings.least = settings.patience = kLong;
  return settings;
}

[[maybe_unused]] int64_t open(const hvds_datagrams_settings& settings, int32_t* port) {
  char message[HVDS_MESSAGE];
  const int64_t endpoint = hvds_datagrams_open(&settings, "127.0.0.1", port, message);
  if (endpoint < 1) fail(message, settings.me);
  return endpoint;
}

void join(int64_t endpoint, const Job& job, const int32_t* ports, int rank) {
  const std::vector<const char*> addresses(job.ranks, "127.0.0.1");
  const std::vector<uint32_t> starts(job.ranks, 1);
  char message[HVDS_MESSAGE];
  if (hvds_datagrams_join(endpoint, addresses.data(), ports, starts.data(), kKey, message) != 0) fail(message, rank);
}

struct Averaged {
  std::vector<float> mean;
  std::vector<int64_t> counts;
  int64_t round;

  int64_t lost(int ranks) const {
    int64_t lost = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      lost += counts[rank] - counts[ranks + rank] + counts[2 * ranks + rank] - counts[3 * ranks + rank];
    }
    return lost;
  }
};

Averaged average(int64_t endpoint, const Job& job, int rank, int64_t round, const std::vector<float>& vector) {
  Averaged averaged{std::vector<float>(job.size), std::vector<int64_t>(4 * job.ranks), 0};
  char message[HVDS_MESSAGE];
  averaged.round = hvds_datagrams_average(endpoint, vector.data(), 1, round, averaged.mean.data(),
                                          averaged.counts.data(), message);
  if (averaged.round < 0) fail(message, rank);
  return averaged;
}

// Values are at most 1000, and at most 64 of them are transformed together.
constexpr float kRounding = 64 * 1000 * 1.2e-7f;

bool is_mean(const Job& job, float averaged, float expected) {
  if (job.spread) return std::abs(averaged - expected) <= kRounding;
  return std::memcmp(&averaged, &expected, sizeof expected) == 0;
}

// Some rounds of one rank without loss: each mean equals a sum in rank order, bit for bit.
[[maybe_unused]] void run_thread(const Job& job, int64_t endpoint, const std::vector<int32_t>& ports, int rank) {
  join(endpoint, job, ports.data(), rank);
  const uint64_t everyone = (uint64_t{1} << job.ranks) - 1;
  for (int64_t round = 0; round < job.rounds; ++round) {
    const Averaged averaged = average(endpoint, job, rank, round, vector_of(job, rank, round));
    if (averaged.round != round || averaged.lost(job.ranks) != 0) fail("something was lost", rank);
    for (int64_t i = 0; i < job.size; ++i) {
      const float expected = mean_of(everyone, job.ranks, round, i);
      if (!is_mean(job, averaged.mean[i], expected)) fail("not the mean", rank);
    }
  }
}

}  // namespace

#endif  // HVD_SPARSE_TESTS_OPS_DATAGRAM_JOB_H_
