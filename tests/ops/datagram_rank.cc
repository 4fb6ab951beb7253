// One rank that averages by datagrams: datagram_rank RANK ROUNDS SIZE RATE FILE ADDRESS...
//
// All ranks listen on the same port of their addresses. After each round, results are appended to FILE: float32 mean
// [SIZE], int64 maximum of segments per block, uint64 contributors [segments], uint8 came [ranks][segments].
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "datagram_job.h"

namespace {

constexpr int32_t kPort = 7071;

template <typename Value>
void write(std::FILE* file, const std::vector<Value>& values) {
  std::fwrite(values.data(), sizeof(Value), values.size(), file);
}

}  // namespace

int main(int count, char** arguments) {
  const int rank = std::atoi(arguments[1]);
  const std::vector<const char*> addresses(arguments + 6, arguments + count);
  const Job job{static_cast<int>(addresses.size()), std::atoll(arguments[2]), std::atoll(arguments[3])};
  hvds_datagrams_settings settings = settings_of(job, rank);
  settings.rate = std::atof(arguments[4]);
  settings.multiple = 4;
  char message[HVDS_MESSAGE];
  int32_t port = kPort;
  const int64_t endpoint = hvds_datagrams_open(&settings, addresses[rank], &port, message);
  if (endpoint < 1) fail(message, rank);
  const std::vector<int32_t> ports(job.ranks, kPort);
  const std::vector<uint32_t> starts(job.ranks, settings.start);
  if (hvds_datagrams_join(endpoint, addresses.data(), ports.data(), starts.data(), kKey, message)) fail(message, rank);
  std::FILE* file = std::fopen(arguments[5], "wb");
  for (int64_t round = 0; round < job.rounds; ++round) {
    write(file, average(endpoint, job, rank, round, vector_of(job, rank, round)).mean);
    const int64_t most = hvds_datagrams_record(endpoint, nullptr, nullptr, nullptr);
    std::vector<uint64_t> contributors(most);
    std::vector<uint8_t> came(most * job.ranks);
    hvds_datagrams_record(endpoint, nullptr, contributors.data(), came.data());
    write(file, std::vector<int64_t>{most});
    write(file, contributors);
    write(file, came);
  }
  std::fclose(file);
  hvds_datagrams_close(endpoint);
  return 0;
}
