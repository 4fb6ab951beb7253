// The selection kernels as a library for the CPU, with functions that show their internal state to tests.
#include "../../../ops/select/select_gpu.cu"

// Statistics of a call, read from its workspace: how many candidates there were and are allowed, and whether the
// winners were taken from the whole vector.
extern "C" void hvds_emulated_outcome(int64_t size, int64_t kept, int mstopk, void* workspace, int64_t* candidates,
                                      int64_t* capacity, int* whole) {
  const hvds::Plan plan = hvds::make_plan(uint32_t(size), uint32_t(kept), mstopk != 0);
  hvds::Workspace work;
  hvds::carve(plan, mstopk != 0, 1, workspace, &work);
  *candidates = plan.capacity == 0 ? 0 : work.offsets[plan.tiles];
  *capacity = plan.capacity;
  *whole = work.state->whole;
}

// The block sums of the mean, as left by a call of MSTopK.
extern "C" const float* hvds_emulated_block_sums(int64_t size, int64_t kept, void* workspace) {
  hvds::Workspace work;
  hvds::carve(hvds::make_plan(uint32_t(size), uint32_t(kept), true), true, 1, workspace, &work);
  return work.block_sums;
}

extern "C" uint32_t hvds_emulated_sample_groups(void) { return hvds::kSampleGroups; }

extern "C" uint32_t hvds_emulated_random_below(uint64_t seed, uint32_t range) { return hvds::random_below(seed, range); }

extern "C" uint32_t hvds_emulated_sample_position(uint32_t group, uint32_t size) {
  return hvds::sample_position(group, size);
}

namespace hvds {

void sum_kernel(const float* terms, uint32_t count, double* sum) {
  const double result = sum_in_order(terms, count);
  if (threadIdx.x == 0) *sum = result;
}

}  // namespace hvds

extern "C" double hvds_emulated_sum(const float* terms, uint32_t count) {
  double sum = 0;
  hvds::Queue(nullptr).launch(hvds::sum_kernel, 1, hvds::kLoneThreads, terms, count, &sum);
  return sum;
}

extern "C" int hvds_emulated_sum_has_no_order(double total, float smallest) {
  return hvds::sum_has_no_order(total, hvds::key_of(smallest));
}

// For every i: halves[i] is widened, floats[i] is narrowed.
extern "C" void hvds_emulated_convert(const uint16_t* halves, float* widened, const float* floats, uint16_t* half,
                                      uint16_t* bfloat16, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    widened[i] = hvds::widen(hvds::Half{halves[i]});
    half[i] = hvds::narrow<hvds::Half>(floats[i]).bits;
    bfloat16[i] = hvds::narrow<hvds::Bfloat16>(floats[i]).bits;
  }
}
