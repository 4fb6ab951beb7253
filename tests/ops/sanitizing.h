// Shared by the programs for the sanitizers: checks that are counted, and threads for the kernels.
#ifndef HVD_SPARSE_TESTS_OPS_SANITIZING_H_
#define HVD_SPARSE_TESTS_OPS_SANITIZING_H_

#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "common/parallel.h"

namespace {

int checked = 0;

void expect(bool holds, const char* what) {
  ++checked;
  if (holds) return;
  std::printf("failed: %s\n", what);
  std::exit(1);
}

// Runs each task in its own thread.
void run_in_threads(void*, int tasks, void (*task)(void*, int), void* argument) {
  std::vector<std::thread> threads;
  for (int index = 0; index < tasks; ++index) threads.emplace_back(task, argument, index);
  for (std::thread& thread : threads) thread.join();
}

const hvds_parallel kThreads{nullptr, 3, run_in_threads};

// The ways to run kernels; without threads there is no race to find.
#ifdef __SANITIZE_THREAD__
const std::vector<const hvds_parallel*> kWays{&kThreads};
#else
const std::vector<const hvds_parallel*> kWays{nullptr, &kThreads};
#endif

}  // namespace

#endif  // HVD_SPARSE_TESTS_OPS_SANITIZING_H_
