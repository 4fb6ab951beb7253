// Selection by magnitude on a GPU: the sequence of the kernels and the C interface.
//
// bound    one block samples the vector: a bound that the winners reach
// scan     one pass over memory: adds, writes the sums, marks elements that reach the bound
// gather   the marked elements, in order
// rank     three histograms: the magnitude of the rank sought, among these or, if they are too few or too many, in the
//          whole vector
// decide   the thresholds of the winners
// count    winners per chunk
// emit     the winners, in order
#include "select_gpu.h"

#include <cub/device/device_scan.cuh>
#include <utility>

#include "select_gpu_emit.cuh"

namespace hvds {
namespace {

constexpr int kBadArgument = -1;
constexpr int kSmallWorkspace = -2;

const char* describe(int code) {
  if (code == kBadArgument) {
    return "an argument is out of range: expected 0 <= kept <= size < 2^31, count >= 1, stride >= size, samplings >= 1, "
           "known dtypes and no null pointer to what is not empty";
  }
  if (code == kSmallWorkspace) return "the workspace is smaller than hvds_gpu_workspace() asks for, or not aligned";
  return cudaGetErrorString(static_cast<cudaError_t>(code));
}

// Queues kernels one after another; after the first error it queues nothing more.
class Queue {
 public:
  explicit Queue(void* stream) : stream_(static_cast<cudaStream_t>(stream)) {
    int device = 0;
    error_ = cudaGetDevice(&device);
    if (ok()) error_ = cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device);
  }

  template <typename... Parameters, typename... Arguments>
  void launch(void (*kernel)(Parameters...), uint32_t blocks, int threads, Arguments&&... arguments) {
    if (!ok()) return;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.stream = stream_;
    error_ = cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
  }

  // The number of blocks of kThreads for kernels that process `pieces` of work in a loop: as many as run concurrently.
  uint32_t blocks_for(uint32_t pieces) const {
    return larger(smaller(pieces, uint32_t(multiprocessors_) * kBlocksPerMultiprocessor), 1u);
  }

  // Replaces counts[0 ... count - 1] by their exclusive prefix sums.
  template <typename Count>
  void prefix_sum(Count* counts, uint32_t count, const Workspace& work) {
    size_t bytes = work.prefix_bytes;
    if (ok()) error_ = cub::DeviceScan::ExclusiveSum(work.prefix_memory, bytes, counts, counts, int(count), stream_);
  }

  bool ok() const { return error_ == cudaSuccess; }

  // Returns the first error and clears it in the runtime, so that it does not surface in a later call.
  int finish() {
    if (!ok()) cudaGetLastError();
    return static_cast<int>(error_);
  }

 private:
  static constexpr uint32_t kBlocksPerMultiprocessor = 8;

  cudaStream_t stream_;
  cudaError_t error_ = cudaSuccess;
  int multiprocessors_ = 1;
};

// Divides memory into aligned arrays; without memory it only adds up their sizes.
class Carver {
 public:
  static constexpr size_t kAlignment = 256;

  explicit Carver(void* memory) : memory_(static_cast<char*>(memory)) {}

  template <typename T>
  T* take(size_t count) {
    const size_t start = used_;
    used_ += (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + start);
  }

  size_t used() const { return used_; }

 private:
  char* memory_;
  size_t used_ = 0;
};

int prefix_sum_bytes(const Plan& plan, size_t* bytes) {
  size_t for_offsets = 0;
  size_t for_counts = 0;
  uint32_t* offsets = nullptr;
  uint64_t* counts = nullptr;
  cudaError_t error = cub::DeviceScan::ExclusiveSum(nullptr, for_offsets, offsets, offsets, int(plan.tiles) + 1, nullptr);
  if (error == cudaSuccess) {
    error = cub::DeviceScan::ExclusiveSum(nullptr, for_counts, counts, counts, int(plan.chunks) + 1, nullptr);
  }
  *bytes = larger(for_offsets, for_counts);
  return static_cast<int>(error);
}

size_t carve(const Plan& plan, bool mstopk, size_t prefix_bytes, void* memory, Workspace* work) {
  Carver carver(memory);
  work->state = carver.take<State>(1);
  work->offsets = carver.take<uint32_t>(plan.tiles + 1);
  work->counts = carver.take<uint64_t>(plan.chunks + 1);
  work->block_sums = mstopk ? carver.take<float>(plan.tiles) : nullptr;
  work->bitmap = plan.capacity > 0 ? carver.take<uint32_t>(size_t(plan.tiles) * kWordsPerTile) : nullptr;
  work->keys = carver.take<Key>(plan.capacity);
  work->indices = carver.take<uint32_t>(plan.capacity);
  work->prefix_memory = carver.take<char>(prefix_bytes);
  work->prefix_bytes = prefix_bytes;
  return carver.used();
}

// How many to keep, by which method, and in which memory to work.
struct Request {
  int64_t size;
  int64_t kept;
  int samplings;  // 0: exact
  uint64_t seed;
  void* workspace;
  size_t workspace_bytes;
  void* stream;
};

bool in_range(int64_t size, int64_t kept) { return kept >= 0 && kept <= size && size <= INT32_MAX; }

template <bool kWhole, typename Part>
void scan(Queue* queue, const Input<Part>& input, float* sums, const Workspace& work, uint32_t first, uint32_t end) {
  if (first == end) return;
  queue->launch(scan_kernel<kWhole, Part>, pieces(end - first, kTilesPerBlock), kThreads, input, sums, work, first,
                end);
}

template <typename Part, typename Stored>
void find_winners(Queue* queue, const Input<Part>& input, const Stored* vector, const Plan& plan,
                  const Workspace& work, int samplings, float* sums) {
  const uint32_t whole = plan.size / (2 * kTile) * 2;  // a warp reads two tiles
  scan<true>(queue, input, sums, work, 0, whole);
  scan<false>(queue, input, sums, work, whole, pieces(plan.tiles, 2) * 2);
  if (plan.capacity > 0) {
    queue->prefix_sum(work.offsets, plan.tiles + 1, work);
    queue->launch(gather_kernel<Stored>, queue->blocks_for(pieces(plan.tiles, kWarps)), kThreads, vector, plan, work);
  }
  for (int digit = 0; digit < kDigits; ++digit) {
    const uint32_t blocks = queue->blocks_for(pieces(plan.size, kThreads * kBatch));
    queue->launch(histogram_kernel<Stored>, blocks, kThreads, vector, plan, work, digit);
  }
  queue->launch(decide_kernel, 1, kLoneThreads, plan, work, samplings);
}

// `vector` holds the sums after the scan: output.residual_out, or the single part if no residual is wanted.
template <typename Part, typename Stored, typename Wire>
int select(const Input<Part>& input, const Stored* vector, const Request& request, const Findings& findings,
           const Output<Wire>& output) {
  const bool mstopk = request.samplings > 0;
  const Plan plan = make_plan(input.size, uint32_t(request.kept), mstopk);
  size_t prefix_bytes = 0;
  const int error = prefix_sum_bytes(plan, &prefix_bytes);
  if (error != cudaSuccess) return error;
  Workspace work;
  if (carve(plan, mstopk, prefix_bytes, request.workspace, &work) > request.workspace_bytes) return kSmallWorkspace;

  Queue queue(request.stream);
  queue.launch(bound_kernel<Part>, 1, kLoneThreads, input, plan, work);
  if (plan.size > 0) find_winners(&queue, input, vector, plan, work, request.samplings, output.residual_out);
  const uint32_t blocks = queue.blocks_for(pieces(plan.chunks, kWarps));
  queue.launch(count_kernel<Stored>, blocks, kThreads, vector, plan, work, findings);
  queue.prefix_sum(work.counts, plan.chunks + 1, work);
  queue.launch(emit_kernel<Stored, Wire>, blocks, kThreads, vector, plan, work, request.seed, output);
  return queue.finish();
}

template <typename Element>
int select_rows(const void* x, const Request& request, void* values, int32_t* indices, int64_t* report) {
  const Input<Element> input{static_cast<const Element*>(x), nullptr, 1, 0, uint32_t(request.size)};
  const Output<Element> output{static_cast<Element*>(values), indices, nullptr, nullptr, 0};
  return select(input, input.parts, request, Findings{nullptr, report}, output);
}

int check(const Request& request) {
  if (!in_range(request.size, request.kept) || request.samplings < 0) return kBadArgument;
  const bool placed = request.workspace != nullptr &&
                      reinterpret_cast<uintptr_t>(request.workspace) % Carver::kAlignment == 0;
  return placed ? 0 : kSmallWorkspace;
}

bool present(const void* pointer, int64_t size) { return pointer != nullptr || size == 0; }

int select_plain(const void* x, int dtype, const Request& request, void* values, int32_t* indices, int64_t* report) {
  const int error = check(request);
  if (error != 0) return error;
  if (!present(x, request.size) || !present(values, request.kept) || !present(indices, request.kept) ||
      report == nullptr) {
    return kBadArgument;
  }
  switch (dtype) {
    case HVDS_FLOAT32:
      return select_rows<float>(x, request, values, indices, report);
    case HVDS_FLOAT16:
      return select_rows<Half>(x, request, values, indices, report);
    case HVDS_BFLOAT16:
      return select_rows<Bfloat16>(x, request, values, indices, report);
    default:
      return kBadArgument;
  }
}

// The arguments of the functions with feedback.
struct Feedback {
  const void* parts;
  int dtype;
  int64_t count;
  int64_t stride;
  const float* residual;
  int wire;
  void* values;
  int32_t* indices;
  float* residual_out;
  int32_t* culprit;
};

template <typename Part, typename Wire>
int select_parts(const Feedback& feedback, const Request& request) {
  const Input<Part> input{static_cast<const Part*>(feedback.parts), feedback.residual, int(feedback.count), feedback.stride,
                          uint32_t(request.size)};
  const Output<Wire> output{static_cast<Wire*>(feedback.values), feedback.indices, feedback.residual_out,
                            feedback.culprit, int32_t(1 + feedback.count)};
  const float* sums = feedback.residual_out;
  return select(input, sums, request, Findings{feedback.culprit, nullptr}, output);
}

template <typename Part>
int select_parts_of(const Feedback& feedback, const Request& request) {
  switch (feedback.wire) {
    case HVDS_FLOAT32:
      return select_parts<Part, float>(feedback, request);
    case HVDS_FLOAT16:
      return select_parts<Part, Half>(feedback, request);
    case HVDS_BFLOAT16:
      return select_parts<Part, Bfloat16>(feedback, request);
    default:
      return kBadArgument;
  }
}

int select_feedback(const Feedback& feedback, const Request& request) {
  const int error = check(request);
  if (error != 0) return error;
  if (feedback.count < 1 || feedback.count >= INT32_MAX || feedback.stride < request.size ||
      !present(feedback.parts, request.size) || !present(feedback.residual_out, request.size) ||
      !present(feedback.values, request.kept) || !present(feedback.indices, request.kept) ||
      feedback.culprit == nullptr) {
    return kBadArgument;
  }
  switch (feedback.dtype) {
    case HVDS_FLOAT32:
      return select_parts_of<float>(feedback, request);
    case HVDS_FLOAT16:
      return select_parts_of<Half>(feedback, request);
    case HVDS_BFLOAT16:
      return select_parts_of<Bfloat16>(feedback, request);
    default:
      return kBadArgument;
  }
}

}  // namespace
}  // namespace hvds

int hvds_gpu_interface(void) { return HVDS_GPU_INTERFACE; }

const char* hvds_gpu_error(int code) { return hvds::describe(code); }

int hvds_gpu_workspace(int64_t size, int64_t kept, int mstopk, size_t* bytes) {
  using namespace hvds;
  if (!in_range(size, kept) || bytes == nullptr) return kBadArgument;
  const Plan plan = make_plan(uint32_t(size), uint32_t(kept), mstopk != 0);
  size_t prefix_bytes = 0;
  const int error = prefix_sum_bytes(plan, &prefix_bytes);
  Workspace work;
  *bytes = carve(plan, mstopk != 0, prefix_bytes, nullptr, &work);
  return error;
}

int hvds_gpu_topk(const void* x, int dtype, int64_t size, int64_t kept, void* values, int32_t* indices,
                  int64_t* report, void* workspace, size_t workspace_bytes, void* stream) {
  const hvds::Request request{size, kept, 0, 0, workspace, workspace_bytes, stream};
  return hvds::select_plain(x, dtype, request, values, indices, report);
}

int hvds_gpu_mstopk(const void* x, int dtype, int64_t size, int64_t kept, int samplings, uint64_t seed, void* values,
                    int32_t* indices, int64_t* report, void* workspace, size_t workspace_bytes, void* stream) {
  if (samplings < 1) return hvds::kBadArgument;
  const hvds::Request request{size, kept, samplings, seed, workspace, workspace_bytes, stream};
  return hvds::select_plain(x, dtype, request, values, indices, report);
}

int hvds_gpu_feedback_topk(const void* parts, int dtype, int64_t count, int64_t stride, const float* residual,
                           int64_t size, int64_t kept, int wire, void* values, int32_t* indices, float* residual_out,
                           int32_t* culprit, void* workspace, size_t workspace_bytes, void* stream) {
  const hvds::Feedback feedback{parts, dtype, count, stride, residual, wire, values, indices, residual_out, culprit};
  return hvds::select_feedback(feedback, hvds::Request{size, kept, 0, 0, workspace, workspace_bytes, stream});
}

int hvds_gpu_feedback_mstopk(const void* parts, int dtype, int64_t count, int64_t stride, const float* residual,
                             int64_t size, int64_t kept, int samplings, uint64_t seed, int wire, void* values,
                             int32_t* indices, float* residual_out, int32_t* culprit, void* workspace,
                             size_t workspace_bytes, void* stream) {
  if (samplings < 1) return hvds::kBadArgument;
  const hvds::Feedback feedback{parts, dtype, count, stride, residual, wire, values, indices, residual_out, culprit};
  return hvds::select_feedback(feedback,
                               hvds::Request{size, kept, samplings, seed, workspace, workspace_bytes, stream});
}
