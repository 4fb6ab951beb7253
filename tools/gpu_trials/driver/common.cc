#include "common.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>
#include <string>

namespace driver {
namespace {

constexpr size_t kPage = 4096;  // also an empty block has an address of its own

using Blocks = std::map<Address, size_t>;

struct Memory {
  std::mutex mutex;
  Blocks device, pinned;
  size_t used = 0;  // on devices

  Blocks& of(Kind kind) { return kind == Kind::kDevice ? device : pinned; }
};

// Never destroyed: TensorFlow frees memory while the process ends.
Memory& memory() {
  static auto* all = new Memory;
  return *all;
}

int number(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value ? std::atoi(value) : otherwise;
}

// As CUDA does: the list ends before the first number that no GPU has.
std::vector<int> visible_gpus() {
  const int all = number("TRIAL_GPUS", 1);
  std::vector<int> visible;
  const char* selected = std::getenv("CUDA_VISIBLE_DEVICES");
  if (!selected) {
    for (int gpu = 0; gpu < all; ++gpu) visible.push_back(gpu);
    return visible;
  }
  std::stringstream list(selected);
  for (std::string item; std::getline(list, item, ',');) {
    char* end = nullptr;
    const long gpu = std::strtol(item.c_str(), &end, 10);
    if (end == item.c_str() || gpu < 0 || gpu >= all) break;
    visible.push_back(static_cast<int>(gpu));
  }
  return visible;
}

FILE* open_log() {
  const char* name = std::getenv("TRIAL_LOG");
  if (!name) return nullptr;
  FILE* file = std::fopen((std::string(name) + "." + std::to_string(getpid())).c_str(), "a");
  if (file) std::setvbuf(file, nullptr, _IOLBF, 0);
  return file;
}

}  // namespace

const std::vector<int>& gpus() {
  static const std::vector<int> visible = visible_gpus();
  return visible;
}

size_t gpu_memory() { return static_cast<size_t>(number("TRIAL_GPU_GIB", 4)) << 30; }

void note(const char* format, ...) {
  static FILE* log = open_log();
  static std::mutex mutex;
  if (!log) return;
  std::lock_guard<std::mutex> lock(mutex);
  va_list values;
  va_start(values, format);
  std::vfprintf(log, format, values);
  va_end(values);
  std::fputc('\n', log);
}

Result allocate(void** block, size_t bytes, Kind kind) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* mapped = mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  if (mapped == MAP_FAILED) return kOutOfMemory;
  std::lock_guard<std::mutex> lock(memory().mutex);
  memory().of(kind)[reinterpret_cast<Address>(mapped)] = bytes;
  if (kind == Kind::kDevice) memory().used += bytes;
  *block = mapped;
  return 0;
}

Result release(void* block, Kind kind) {
  std::lock_guard<std::mutex> lock(memory().mutex);
  Blocks& blocks = memory().of(kind);
  const auto found = blocks.find(reinterpret_cast<Address>(block));
  if (found == blocks.end()) return kInvalid;
  munmap(block, found->second + kPage);
  if (kind == Kind::kDevice) memory().used -= found->second;
  blocks.erase(found);
  return 0;
}

bool contains(Kind kind, const void* address, Address* base, size_t* bytes) {
  std::lock_guard<std::mutex> lock(memory().mutex);
  const auto sought = reinterpret_cast<Address>(address);
  auto found = memory().of(kind).upper_bound(sought);
  if (found == memory().of(kind).begin()) return false;
  --found;
  if (sought >= found->first + found->second) return false;
  if (base) *base = found->first;
  if (bytes) *bytes = found->second;
  return true;
}

size_t free_memory() {
  std::lock_guard<std::mutex> lock(memory().mutex);
  return memory().used < gpu_memory() ? gpu_memory() - memory().used : 0;
}

Result copy(const char* direction, void* to, const void* from, size_t bytes) {
  const bool from_host = direction[0] == 'H', to_host = direction[2] == 'H';
  const char* host = "";
  if (from_host || to_host) host = contains(Kind::kPinned, from_host ? from : to) ? " pinned" : " pageable";
  note("copy %s %zu%s", direction, bytes, host);
  std::memmove(to, from, bytes);
  return 0;
}

Result fill(void* block, unsigned char value, size_t bytes) {
  note("fill %zu", bytes);
  std::memset(block, value, bytes);
  return 0;
}

// As an H200 has them.
int attribute(int number) {
  static const std::map<int, int> known = {
      {1, 1024},      {2, 1024},   {3, 1024},     {4, 64},      {5, 2147483647}, {6, 65535},   {7, 65535},
      {8, 49152},     {9, 65536},  {10, 32},      {12, 65536},  {13, 1980000},   {16, 132},    {33, 1},
      {36, 3201000},  {37, 6144},  {38, 60 << 20}, {39, 2048},   {40, 3},         {75, 9},      {81, 233472},
      {82, 65536},    {95, 1},     {97, 232448},  {106, 32},    {115, 1},
  };
  const auto found = known.find(number);
  return found == known.end() ? 0 : found->second;
}

}  // namespace driver

// What functions do that are looked up but not written here.
CALLED_BY_TENSORFLOW int trial_stub(const char* name, int fails) {
  driver::note("stub %s", name);
  return fails ? driver::kNotSupported : 0;
}
