// Ranks as processes that exchange pieces through shared memory: exchange_ranks RANKS ROUNDS WHAT
//
//   all:   every rank makes ROUNDS exchanges on each of three channels, each from its own thread, the ranks in
//          different orders; received data is checked, some of it only after the next exchange, and then all leave.
//   dies:  rank 0 kills itself before its last exchange; the others must get an error.
//   stops: rank 0 stops itself before its last exchange; the others must get an error after their patience of a second.
//   late:  rank 0 sleeps for longer than that before its last exchange, for which the others must wait.
//   ends:  as late, but the others can no longer exchange otherwise, and must not wait.
//   large: as all, with pieces of several megabytes.
//   many:  as all, with more channels, whose exchanges all start at the same time.
// Ends with status 0 if all was right.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "../../ops/shared_memory/shared_memory.h"

namespace {

struct Shared {
  std::atomic<int> opened;
  std::atomic<int> joined;
  int64_t addresses[HVDS_MAX_NEIGHBOURS][3];
};

struct Job {
  int ranks;
  int rounds;
  std::string what;
  int64_t unit;
  int channels;
};

// The number of bytes that `from` sends to `to`, sometimes none; and their values.
int64_t length(const Job& job, int from, int to, int round) { return (from * 3 + to * 5 + round) % 7 * job.unit; }
unsigned char byte(int from, int to, int channel, int round) {
  return static_cast<unsigned char>(1 + from * 31 + to * 17 + channel * 7 + round);
}

[[noreturn]] void fail(const char* why, int rank) {
  std::fprintf(stderr, "rank %d: %s\n", rank, why);
  std::_Exit(1);
}

bool right(const Job& job, int me, int channel, int round, const hvds_received* received) {
  const auto* data = static_cast<const unsigned char*>(hvds_received_data(received));
  for (int from = 0; from < job.ranks; ++from) {
    for (int64_t i = length(job, from, me, round); i > 0; --i) {
      if (*data++ != byte(from, me, channel, round)) return false;
    }
  }
  return true;
}

hvds_received* exchange(const Job& job, int64_t group, int me, int channel, int round, char* message) {
  std::vector<std::vector<unsigned char>> pieces(job.ranks);
  std::vector<const void*> data;
  std::vector<int64_t> bytes, offsets;
  int64_t expected = 0;
  for (int to = 0; to < job.ranks; ++to) {
    pieces[to].assign(length(job, me, to, round), byte(me, to, channel, round));
    data.push_back(pieces[to].data());
    bytes.push_back(length(job, me, to, round));
    int64_t before = 0;
    for (int from = 0; from < me; ++from) before += length(job, from, to, round);
    offsets.push_back(before);
    expected += length(job, to, me, round);
  }
  const std::string name = "channel " + std::to_string(channel);
  return hvds_exchange(group, name.c_str(), data.data(), bytes.data(), offsets.data(), expected, message);
}

// Waits until all channels of this rank have reached this round.
void begin_together(const Job& job, int round) {
  static std::atomic<int> come{0};
  come.fetch_add(1);
  while (come.load() < job.channels * (round + 1)) std::this_thread::yield();
}

void run_channel(const Job& job, int64_t group, int me, int channel) {
  char message[256];
  hvds_received* held = nullptr;
  for (int round = 0; round < job.rounds; ++round) {
    if (job.what == "many") begin_together(job, round);
    hvds_received* received = exchange(job, group, me, channel, round, message);
    if (received == nullptr) fail(message, me);
    if (held != nullptr && !right(job, me, channel, round - 1, held)) fail("what was held has changed", me);
    if (held != nullptr) hvds_received_release(held);
    held = nullptr;
    if (!right(job, me, channel, round, received)) fail("not what was sent", me);
    if (round % 3 == 0) {
      held = received;
    } else {
      hvds_received_release(received);
    }
  }
  if (held != nullptr) hvds_received_release(held);
}

void run_all(const Job& job, int64_t group, int me) {
  std::vector<std::thread> threads;
  for (int i = 0; i < job.channels; ++i) {
    threads.emplace_back([&job, group, me, i] { run_channel(job, group, me, (me + i) % job.channels); });
  }
  for (std::thread& thread : threads) thread.join();
}

constexpr double kPatience = 1;

// What rank 0 does before its last exchange.
void strike(const std::string& what) {
  if (what == "dies") raise(SIGKILL);
  if (what == "stops") raise(SIGSTOP);
  usleep(static_cast<useconds_t>(3e6 * kPatience));
}

bool told(const std::string& what, const char* message) {
  const auto says = [message](const char* text) { return std::strstr(message, text) != nullptr; };
  if (what == "stops") return says("rank 0 stands still") || says("has left");  // the first who gives up leaves
  if (what == "ends") return says("Horovod has ended on this rank") || says("has left");
  return says("has ended") || says("has left") || says("cannot be used");
}

void run_until_one_fails(const Job& job, int64_t group, int me) {
  char message[256];
  for (int round = 0; round < job.rounds; ++round) {
    const bool last = round == job.rounds - 1;
    if (last && me == 0) strike(job.what);
    hvds_received* received = exchange(job, group, me, 0, round, message);
    const bool fails = last && job.what != "late";
    if ((received == nullptr) != fails) fail(fails ? "nobody said that rank 0 is gone" : message, me);
    if (received != nullptr) hvds_received_release(received);
  }
  if (job.what != "late" && !told(job.what, message)) fail(message, me);
}

int32_t always_ended() { return 1; }

void meet(std::atomic<int>& come, const Job& job) {
  come.fetch_add(1);
  while (come.load() < job.ranks) usleep(1000);
}

int run_rank(const Job& job, Shared* shared, int me) {
  const int64_t group = hvds_neighbours_open(job.ranks, me, shared->addresses[me]);
  if (group < 1) fail("cannot open", me);
  meet(shared->opened, job);
  if (hvds_neighbours_join(group, &shared->addresses[0][0]) != 0) fail("cannot join", me);
  if (hvds_neighbours_watch(group, kPatience, job.what == "ends" && me > 0 ? always_ended : nullptr) != 0) {
    fail("cannot watch", me);
  }
  meet(shared->joined, job);
  if (job.what == "dies" || job.what == "stops" || job.what == "late" || job.what == "ends") {
    run_until_one_fails(job, group, me);
  } else {
    run_all(job, group, me);
  }
  hvds_neighbours_close(group);  // immediately: others may not have finished yet
  return 0;
}

}  // namespace

int main(int, char** arguments) {
  const std::string what = arguments[3];
  const Job job{std::atoi(arguments[1]), std::atoi(arguments[2]), what, what == "large" ? 1'000'003 : 257,
                what == "many" ? 24 : 3};
  auto* shared = static_cast<Shared*>(
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::vector<pid_t> children;
  for (int rank = 0; rank < job.ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) std::_Exit(run_rank(job, shared, rank));
    children.push_back(child);
  }
  int failures = 0;
  for (int rank = job.ranks - 1; rank >= 0; --rank) {
    int status = 0;
    if (what == "stops" && rank == 0) kill(children[rank], SIGKILL);
    waitpid(children[rank], &status, 0);
    const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    const bool as_meant = (what == "dies" || what == "stops") && rank == 0 ? killed : WIFEXITED(status) && WEXITSTATUS(status) == 0;
    failures += as_meant ? 0 : 1;
  }
  return failures;
}
