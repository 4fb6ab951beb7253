// NCCL between processes of one machine: each copies what it sends into its part of a file in shared memory, all meet,
// and each reads what it needs.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "common.h"

using driver::Result;

namespace {

constexpr size_t kPart = size_t{1} << 30;  // of each rank; reserved, not filled
constexpr size_t kHead = 4096;
constexpr int kSum = 0, kProduct = 1, kMax = 2, kMin = 3, kAverage = 4;
constexpr int kInt32 = 2, kInt64 = 4, kFloat32 = 7, kFloat64 = 8;  // what is reduced here

struct Meeting {
  std::atomic<int> arrived, round;
};

struct Id {
  char name[128];
};

size_t width(int type) {
  static const size_t widths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return widths[type];
}

}  // namespace

struct Communicator {
  int size, rank;
  char* memory;

  char* part(int of) const { return memory + kHead + of * kPart; }
  char* mine() const { return part(rank); }

  void meet() const {
    auto* meeting = reinterpret_cast<Meeting*>(memory);
    const int round = meeting->round.load();
    if (meeting->arrived.fetch_add(1) + 1 == size) {
      meeting->arrived = 0;
      ++meeting->round;
      return;
    }
    for (long turn = 0; meeting->round.load() == round; ++turn) turn < 1000 ? sched_yield() : usleep(50);
  }
};

namespace {

template <class T>
T reduced(T left, T right, int operation) {
  switch (operation) {
    case kProduct: return left * right;
    case kMax: return left > right ? left : right;
    case kMin: return left < right ? left : right;
    default: return left + right;
  }
}

template <class T>
void reduce(const Communicator& ranks, void* to, size_t first, size_t count, int operation) {
  for (size_t i = 0; i < count; ++i) {
    T value = reinterpret_cast<const T*>(ranks.part(0))[first + i];
    for (int rank = 1; rank < ranks.size; ++rank) {
      value = reduced(value, reinterpret_cast<const T*>(ranks.part(rank))[first + i], operation);
    }
    static_cast<T*>(to)[i] = operation == kAverage ? value / ranks.size : value;
  }
}

Result reduce_all(const Communicator& ranks, void* to, size_t first, size_t count, int type, int operation) {
  switch (type) {
    case kInt32: return reduce<int32_t>(ranks, to, first, count, operation), 0;
    case kInt64: return reduce<int64_t>(ranks, to, first, count, operation), 0;
    case kFloat32: return reduce<float>(ranks, to, first, count, operation), 0;
    case kFloat64: return reduce<double>(ranks, to, first, count, operation), 0;
    default: return driver::kNotSupported;
  }
}

// What a rank sends to and receives from others between ncclGroupStart and ncclGroupEnd.
struct Message {
  bool sent;
  void* memory;
  size_t bytes;
  int peer;
  const Communicator* ranks;
};
thread_local std::vector<Message> messages;
thread_local int depth = 0;

// The head of a rank's part says where what it sends to each rank begins.
Result exchange() {
  if (messages.empty()) return 0;
  const Communicator& ranks = *messages[0].ranks;
  auto* begins = reinterpret_cast<size_t*>(ranks.mine());
  size_t next = kHead, bytes = 0;
  for (const Message& message : messages) {
    if (!message.sent) continue;
    begins[message.peer] = next;
    memcpy(ranks.mine() + next, message.memory, message.bytes);
    next += message.bytes;
    if (message.peer != ranks.rank) bytes += message.bytes;
  }
  driver::note("nccl send %zu of %d", bytes, ranks.size);
  ranks.meet();
  for (const Message& message : messages) {
    if (message.sent) continue;
    const char* theirs = ranks.part(message.peer);
    memcpy(message.memory, theirs + reinterpret_cast<const size_t*>(theirs)[ranks.rank], message.bytes);
  }
  ranks.meet();
  messages.clear();
  return 0;
}

Result add(Message message) {
  messages.push_back(message);
  return depth ? 0 : exchange();
}

}  // namespace

CALLED_BY_TENSORFLOW Result ncclGetVersion(int* version) { return *version = 22707, 0; }
CALLED_BY_TENSORFLOW const char* ncclGetErrorString(int) { return "an error of the trial"; }

CALLED_BY_TENSORFLOW Result ncclGetUniqueId(Id* id) {
  static std::atomic<int> last{0};
  *id = {};
  snprintf(id->name, sizeof id->name, "/dev/shm/nccl_trial.%d.%d", getpid(), ++last);
  return 0;
}

CALLED_BY_TENSORFLOW Result ncclCommInitRank(Communicator** made, int size, Id id, int rank) {
  const int file = open(id.name, O_RDWR | O_CREAT, 0600);
  if (file < 0) return driver::kInvalid;
  const size_t bytes = kHead + kPart * size;
  void* memory = MAP_FAILED;
  if (ftruncate(file, bytes) == 0) {
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  }
  close(file);
  if (memory == MAP_FAILED) return driver::kInvalid;
  *made = new Communicator{size, rank, static_cast<char*>(memory)};
  driver::note("nccl ranks %d rank %d", size, rank);
  (*made)->meet();
  if (rank == 0) unlink(id.name);
  return 0;
}

CALLED_BY_TENSORFLOW Result ncclCommDestroy(Communicator*) { return 0; }
CALLED_BY_TENSORFLOW Result ncclCommAbort(Communicator*) { return 0; }
CALLED_BY_TENSORFLOW Result ncclCommGetAsyncError(Communicator*, int* error) { return *error = 0, 0; }

CALLED_BY_TENSORFLOW Result ncclAllReduce(const void* from, void* to, size_t count, int type, int operation,
                                          Communicator* ranks, void*) {
  driver::note("nccl allreduce %zu of %d", count * width(type), ranks->size);
  memcpy(ranks->mine(), from, count * width(type));
  ranks->meet();
  const Result result = reduce_all(*ranks, to, 0, count, type, operation);
  ranks->meet();
  return result;
}

CALLED_BY_TENSORFLOW Result ncclReduceScatter(const void* from, void* to, size_t count, int type, int operation,
                                              Communicator* ranks, void*) {
  driver::note("nccl reducescatter %zu of %d", count * width(type), ranks->size);
  memcpy(ranks->mine(), from, count * ranks->size * width(type));
  ranks->meet();
  const Result result = reduce_all(*ranks, to, count * ranks->rank, count, type, operation);
  ranks->meet();
  return result;
}

CALLED_BY_TENSORFLOW Result ncclAllGather(const void* from, void* to, size_t count, int type, Communicator* ranks,
                                          void*) {
  const size_t bytes = count * width(type);
  driver::note("nccl allgather %zu of %d", bytes, ranks->size);
  memcpy(ranks->mine(), from, bytes);
  ranks->meet();
  auto* gathered = static_cast<char*>(to);
  for (int rank = 0; rank < ranks->size; ++rank) memcpy(gathered + rank * bytes, ranks->part(rank), bytes);
  ranks->meet();
  return 0;
}

CALLED_BY_TENSORFLOW Result ncclBroadcast(const void* from, void* to, size_t count, int type, int root,
                                          Communicator* ranks, void*) {
  const size_t bytes = count * width(type);
  driver::note("nccl broadcast %zu of %d", bytes, ranks->size);
  if (ranks->rank == root) memcpy(ranks->part(root), from, bytes);
  ranks->meet();
  memcpy(to, ranks->part(root), bytes);
  ranks->meet();
  return 0;
}

CALLED_BY_TENSORFLOW Result ncclGroupStart() { return ++depth, 0; }
CALLED_BY_TENSORFLOW Result ncclGroupEnd() { return --depth == 0 ? exchange() : 0; }
CALLED_BY_TENSORFLOW Result ncclSend(const void* memory, size_t count, int type, int peer, Communicator* ranks, void*) {
  return add({true, const_cast<void*>(memory), count * width(type), peer, ranks});
}
CALLED_BY_TENSORFLOW Result ncclRecv(void* memory, size_t count, int type, int peer, Communicator* ranks, void*) {
  return add({false, memory, count * width(type), peer, ranks});
}
