// Ranks that average by datagrams: datagram_ranks WHAT RANKS ROUNDS SIZE SPREAD
//
//   all:   ranks as threads over the loopback interface; each mean equals a sum in rank order, bit for bit.
//   dies:  ranks as processes; rank 0 is killed in the middle of a phase, the others continue and report it as silent,
//          and another process replaces it, which contributes nothing in its first rounds.
//   stops: the same, but rank 0 is stopped for a while.
// Ends with status 0 if all was right. In `dies` and `stops` each segment is compared with the mean of the contributors
// recorded by its owner, except with SPREAD 1, where segments are in another basis.
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "datagram_job.h"
#include "datagrams/format.h"

namespace {

// ---- all ----

void run_all(const Job& job) {
  std::vector<int64_t> endpoints;
  std::vector<int32_t> ports(job.ranks, 0);
  for (int rank = 0; rank < job.ranks; ++rank) endpoints.push_back(open(settings_of(job, rank), &ports[rank]));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < job.ranks; ++rank) {
    threads.emplace_back(run_thread, std::cref(job), endpoints[rank], std::cref(ports), rank);
  }
  for (std::thread& thread : threads) thread.join();
  for (const int64_t endpoint : endpoints) hvds_datagrams_close(endpoint);
}

// ---- dies, stops ----

constexpr int kMost = 8;

struct Shared {
  std::atomic<int> opened, over;
  std::atomic<bool> seen_silent, back;
  int32_t ports[kMost];
  std::atomic<int64_t> in_the_middle;  // the round in which rank 0 is killed or stopped
};

constexpr double kSlow = 40e6;  // bits per second, so that phases are long enough to hit one

hvds_datagrams_settings mortal(const Job& job, int rank, uint32_t start) {
  hvds_datagrams_settings settings = settings_of(job, rank);
  settings.start = start;
  settings.rate = kSlow;
  settings.multiple = 3;
  settings.slack = kLong;
  settings.least = 0.05;
  settings.patience = 0.5;
  return settings;
}

// Checks the segments of the rank's own block against the mean of their contributors.
void check_own_block(int64_t endpoint, const Job& job, int rank, const Averaged& averaged,
                     const std::vector<float>& own, int64_t round) {
  if (job.spread) return;
  int64_t segment = 0;
  const int64_t most = hvds_datagrams_record(endpoint, &segment, nullptr, nullptr);
  std::vector<uint64_t> contributors(most);
  std::vector<uint8_t> came(most * job.ranks);
  hvds_datagrams_record(endpoint, nullptr, contributors.data(), came.data());
  const hvds::Layout layout{job.size, job.ranks, segment, true};
  for (int64_t block = 0; block < job.ranks; ++block) {
    for (int64_t number = 0; number < layout.segments_of(block); ++number) {
      const bool mine = block == layout.block_of(rank, averaged.round);
      if (!mine && came[block * most + number]) continue;
      for (int64_t j = 0; j < layout.elements_of(block, number); ++j) {
        const int64_t i = layout.start_of(block) + number * segment + j;
        const float expected = mine ? mean_of(contributors[number], job.ranks, round, i) : own[i];
        if (averaged.mean[i] != expected) fail("not the mean of those that are in it, nor its own", rank);
      }
    }
  }
}

// One round of a rank that has just come back: no segment of its own block has its contribution.
int64_t listen_once(int64_t endpoint, const Job& job, int rank, int64_t round) {
  const std::vector<float> nothing(job.size);
  std::vector<float> mean(job.size);
  std::vector<int64_t> counts(4 * job.ranks);
  char message[HVDS_MESSAGE];
  const int64_t listened =
      hvds_datagrams_average(endpoint, nothing.data(), 0, round, mean.data(), counts.data(), message);
  if (listened == -ETIMEDOUT) return round;
  if (listened < 0) fail(message, rank);
  std::vector<uint64_t> contributors(hvds_datagrams_record(endpoint, nullptr, nullptr, nullptr));
  hvds_datagrams_record(endpoint, nullptr, contributors.data(), nullptr);
  for (const uint64_t each : contributors) {
    if ((each >> rank & 1) != 0) fail("it had no model, and has contributed", rank);
  }
  return listened + 1;
}

int run_process(const Job& job, Shared* shared, int rank, uint32_t start) {
  int32_t port = start == 1 ? 0 : shared->ports[rank];
  const int64_t endpoint = open(mortal(job, rank, start), &port);
  if (start == 1) {
    shared->ports[rank] = port;
    shared->opened.fetch_add(1);
    while (shared->opened.load() < job.ranks) usleep(1000);
  }
  join(endpoint, job, shared->ports, rank);
  int64_t together = 0;
  const uint64_t everyone = (uint64_t{1} << job.ranks) - 1;
  int64_t first = 0;
  for (int time = 0; start > 1 && time < 3; ++time) first = listen_once(endpoint, job, rank, first);
  for (int64_t round = first; shared->over.load() == 0;) {
    if (rank == 0 && start == 1 && round == 2) shared->in_the_middle = round;
    const std::vector<float> own = vector_of(job, rank, 0);  // the same in all rounds, as ranks may skip some
    const Averaged averaged = average(endpoint, job, rank, round, own);
    check_own_block(endpoint, job, rank, averaged, own, 0);
    if (averaged.round < round) fail("a round came again", rank);
    round = averaged.round + 1;
    hvds_datagrams_report report;
    hvds_datagrams_report_of(endpoint, &report);
    if (rank != 0 && (report.silent & 1) != 0) shared->seen_silent = true;
    if (rank == 1 && shared->back) {
      int64_t heard = 0;
      for (int other = 0; other < job.ranks; ++other) heard += averaged.counts[other] > 0 ? 1 : 0;
      together = heard == job.ranks - 1 && (report.silent & everyone) == 0 ? together + 1 : 0;
      if (together == 3) shared->over = 1;
    }
  }
  hvds_datagrams_close(endpoint);
  return 0;
}

void run_until_hit(const Job& job, bool kill_it) {
  auto* shared = static_cast<Shared*>(
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::vector<pid_t> children;
  const auto spawn = [&](int rank, uint32_t start) {
    const pid_t child = fork();
    if (child == 0) std::_Exit(run_process(job, shared, rank, start));
    children.push_back(child);
  };
  for (int rank = 0; rank < job.ranks; ++rank) spawn(rank, 1);
  while (shared->in_the_middle.load() == 0) usleep(1000);
  usleep(20'000);  // at any point of the round
  kill(children[0], kill_it ? SIGKILL : SIGSTOP);
  while (!shared->seen_silent.load()) usleep(1000);
  if (kill_it) {
    spawn(0, 2);
  } else {
    kill(children[0], SIGCONT);
  }
  shared->back = true;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    const bool killed = kill_it && child == children[0];
    if (killed ? !WIFSIGNALED(status) : status != 0) fail("a rank did not end well", -1);
  }
}

}  // namespace

int main(int, char** arguments) {
  const std::string what = arguments[1];
  const bool spread = std::atoi(arguments[5]) != 0;
  const Job job{std::atoi(arguments[2]), std::atoll(arguments[3]), std::atoll(arguments[4]), spread};
  if (what == "all") {
    run_all(job);
  } else {
    run_until_hit(job, what == "dies");
  }
  return 0;
}
