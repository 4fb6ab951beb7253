// How a kernel runs tasks in parallel, whoever owns the threads.
#ifndef HVD_SPARSE_OPS_PARALLEL_H_
#define HVD_SPARSE_OPS_PARALLEL_H_

#ifdef __cplusplus
#include <type_traits>

extern "C" {
#endif

// An executor lent by the caller. `run` calls task(argument, 0) ... task(argument, tasks - 1), each exactly once, in
// any order, on any threads, and returns when all have returned. `threads` (>= 1) is how many run concurrently; it
// determines how the work is divided, but never the result. A NULL pointer to this struct means: run serially, on the
// calling thread.
typedef struct hvds_parallel {
  void* context;  // passed to run
  int threads;
  void (*run)(void* context, int tasks, void (*task)(void* argument, int index), void* argument);
} hvds_parallel;

#ifdef __cplusplus
}  // extern "C"

namespace hvds {

inline int thread_count(const hvds_parallel* parallel) {
  return parallel == nullptr || parallel->threads < 1 ? 1 : parallel->threads;
}

// Calls body(0) ... body(tasks - 1). The body must not throw.
template <typename Body>
void parallel_for(const hvds_parallel* parallel, int tasks, Body&& body) {
  if (parallel == nullptr || tasks <= 1) {
    for (int index = 0; index < tasks; ++index) body(index);
    return;
  }
  using Function = typename std::remove_reference<Body>::type;
  parallel->run(
      parallel->context, tasks, [](void* argument, int index) { (*static_cast<Function*>(argument))(index); }, &body);
}

}  // namespace hvds
#endif  // __cplusplus

#endif  // HVD_SPARSE_OPS_PARALLEL_H_
