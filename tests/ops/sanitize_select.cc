// Runs the kernels of select.h on blocks of exactly the right length, under the sanitizers, and compares with a sort.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "common/cpu_features.h"
#include "select/select.h"
#include "sanitizing.h"

namespace {

// All indices by descending magnitude, from a simple sort.
std::vector<int32_t> by_magnitude(const std::vector<float>& x) {
  std::vector<int32_t> order(x.size());
  for (size_t i = 0; i < x.size(); ++i) order[i] = int32_t(i);
  std::stable_sort(order.begin(), order.end(),
                   [&x](int32_t a, int32_t b) { return std::fabs(x[a]) > std::fabs(x[b]); });
  return order;
}

std::vector<int32_t> first_of(const std::vector<int32_t>& order, int64_t kept) {
  std::vector<int32_t> wanted(order.begin(), order.begin() + kept);
  std::sort(wanted.begin(), wanted.end());
  return wanted;
}

std::vector<int32_t> largest_of_buckets(const std::vector<float>& x, int64_t bucket, int64_t kept) {
  const int64_t size = int64_t(x.size());
  std::vector<int32_t> wanted;
  for (int64_t first = 0; first < size; first += bucket) {
    const int64_t end = std::min(size, first + bucket);
    const std::vector<float> part(x.begin() + first, x.begin() + end);
    for (const int32_t index : first_of(by_magnitude(part), std::min(kept, end - first)))
      wanted.push_back(int32_t(first) + index);
  }
  return wanted;
}

// Each use has its own block, so that one element too many is detected.
template <typename Element>
std::unique_ptr<Element[]> block(int64_t count) {
  return std::unique_ptr<Element[]>(new Element[size_t(count)]);
}

std::vector<float> make(int kind, int64_t size, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> x(size_t(size), 1.0f);
  for (int64_t i = 0; i < size; ++i) {
    if (kind == 0) x[i] = normal(random);
    if (kind == 1) x[i] = float(random() % 3);
    if (kind == 3) x[i] = float(i);
  }
  return x;
}

void check_exact(const std::vector<float>& x, const std::vector<int32_t>& wanted, hvds_workspace* workspace,
                 const hvds_parallel* parallel) {
  const int64_t size = int64_t(x.size()), kept = int64_t(wanted.size());
  auto input = block<float>(size), residual = block<float>(size), values = block<float>(kept), out = block<float>(size);
  auto indices = block<int32_t>(kept);
  std::copy(x.begin(), x.end(), input.get());
  std::fill_n(residual.get(), size, 0.0f);
  int64_t report[2];
  expect(hvds_topk(input.get(), HVDS_FLOAT32, size, kept, values.get(), indices.get(), report, workspace, parallel) == 0,
         "topk runs");
  expect(std::equal(wanted.begin(), wanted.end(), indices.get()), "topk");
  int32_t fault = -1;
  expect(hvds_feedback_topk(input.get(), HVDS_FLOAT32, 1, size, residual.get(), size, kept, HVDS_FLOAT32, values.get(),
                            indices.get(), out.get(), &fault, workspace, parallel) == 0,
         "feedback runs");
  expect(fault == 0 && std::equal(wanted.begin(), wanted.end(), indices.get()), "feedback");
  std::vector<float> left = x;
  for (const int32_t index : wanted) left[size_t(index)] = 0.0f;
  expect(std::equal(left.begin(), left.end(), out.get()), "what feedback keeps back");
}

void check_mstopk(const std::vector<float>& x, int64_t kept, hvds_workspace* workspace, const hvds_parallel* parallel) {
  const int64_t size = int64_t(x.size());
  auto input = block<float>(size), values = block<float>(kept), residual = block<float>(size);
  auto indices = block<int32_t>(kept);
  std::copy(x.begin(), x.end(), input.get());
  std::fill_n(residual.get(), size, 1.0f);
  int64_t report[2];
  expect(hvds_mstopk(input.get(), HVDS_FLOAT32, size, kept, 5, 7, values.get(), indices.get(), report, workspace,
                     parallel) == 0,
         "mstopk runs");
  int32_t fault = -1;
  expect(hvds_feedback_mstopk(input.get(), HVDS_FLOAT32, 1, size, residual.get(), size, kept, 5, 7, HVDS_FLOAT32,
                              values.get(), indices.get(), residual.get(), &fault, workspace, parallel) == 0,
         "feedback in place runs");
  std::vector<int32_t> distinct(indices.get(), indices.get() + kept);
  std::sort(distinct.begin(), distinct.end());
  expect(std::adjacent_find(distinct.begin(), distinct.end()) == distinct.end(), "indices are distinct");
  expect(kept == 0 || (distinct.front() >= 0 && distinct.back() < size), "indices are in range");
}

void check_buckets(const std::vector<float>& x, const std::vector<int32_t>& wanted, int64_t bucket, int64_t kept,
                   hvds_workspace* workspace, const hvds_parallel* parallel) {
  const int64_t size = int64_t(x.size()), count = int64_t(wanted.size());
  auto input = block<float>(size), values = block<float>(count), residual = block<float>(size), out = block<float>(size);
  auto indices = block<int32_t>(count);
  std::copy(x.begin(), x.end(), input.get());
  std::fill_n(residual.get(), size, 0.0f);
  int32_t fault = -1;
  expect(hvds_feedback_bucket_topk(input.get(), HVDS_FLOAT32, 1, size, residual.get(), size, bucket, kept, HVDS_FLOAT32,
                                   values.get(), indices.get(), out.get(), &fault, workspace, parallel) == 0,
         "feedback by buckets runs");
  expect(fault == 0 && std::equal(wanted.begin(), wanted.end(), indices.get()), "feedback by buckets");
  std::vector<float> left = x;
  for (const int32_t index : wanted) left[size_t(index)] = 0.0f;
  expect(std::equal(left.begin(), left.end(), out.get()), "what feedback by buckets keeps back");
}

// Checks the result of the previous call: the sent elements of x in order, and all others left.
void check_sent(const std::vector<float>& x, int64_t sent, const float* out, hvds_workspace* workspace) {
  auto values = block<float>(sent);
  auto indices = block<int32_t>(sent);
  hvds_take_sent(workspace, HVDS_FLOAT32, values.get(), indices.get());
  std::vector<float> left = x;
  bool in_order = true;
  for (int64_t i = 0; i < sent; ++i) {
    in_order &= values[i] == x[size_t(indices[i])] && (i == 0 || indices[i - 1] < indices[i]);
    left[size_t(indices[i])] = 0.0f;
  }
  expect(in_order, "sent are elements in order");
  expect(std::equal(left.begin(), left.end(), out), "what a threshold keeps back");
}

void check_sampled(const std::vector<float>& x, int64_t kept, hvds_workspace* workspace,
                   const hvds_parallel* parallel) {
  const int64_t size = int64_t(x.size());
  auto input = block<float>(size), residual = block<float>(size), out = block<float>(size);
  std::copy(x.begin(), x.end(), input.get());
  std::fill_n(residual.get(), size, 0.0f);
  const int64_t samples = std::max<int64_t>(1, size / 10);
  const hvds_sampling sampling{samples, kept * samples / size, 3, (kept + 1) / 2, 2 * kept, kept};
  int32_t fault = -1;
  int64_t sent = -1;
  expect(hvds_feedback_sampled(input.get(), HVDS_FLOAT32, 1, size, residual.get(), size, &sampling, HVDS_FLOAT32,
                               out.get(), &fault, &sent, workspace, parallel) == 0,
         "a sampled threshold runs");
  expect(fault == 0 && sampling.least <= sent && sent <= sampling.most, "about as many as asked for are sent");
  check_sent(x, sent, out.get(), workspace);
}

// Selects by a threshold that is due (negative) or from an earlier step.
void check_held(const std::vector<float>& x, const std::vector<int32_t>& order, int64_t kept, float threshold,
                hvds_workspace* workspace, const hvds_parallel* parallel) {
  const int64_t size = int64_t(x.size());
  auto input = block<float>(size), residual = block<float>(size), out = block<float>(size);
  std::copy(x.begin(), x.end(), input.get());
  std::fill_n(residual.get(), size, 0.0f);
  const hvds_holding holding{threshold < 0, kept, (kept + 3) / 4, std::min(4 * kept, size)};
  int32_t fault = -1, clamped = -1;
  int64_t sent = -1;
  float held = threshold;
  expect(hvds_feedback_held(input.get(), HVDS_FLOAT32, 1, size, residual.get(), size, &holding, HVDS_FLOAT32, &held,
                            out.get(), &fault, &sent, &clamped, workspace, parallel) == 0,
         "a threshold that is held runs");
  const float due = kept == size ? 0.0f : std::fabs(x[size_t(order[size_t(kept - 1)])]);
  expect(held == (threshold < 0 ? due : threshold), "the threshold is that of rank k, or stays");
  int64_t reaching = 0, nonzero = 0;
  for (const float value : x) {
    nonzero += value != 0;
    reaching += value != 0 && std::fabs(value) >= held;
  }
  const int64_t wanted = std::min(std::clamp(reaching, holding.least, holding.most), nonzero);
  expect(fault == 0 && sent == wanted && clamped == int(wanted != reaching), "as many as may be are sent");
  check_sent(x, sent, out.get(), workspace);
}

}  // namespace

int main() {
  std::mt19937 random(1);
  hvds_workspace* workspace = hvds_workspace_create();
  for (const int64_t size : {1, 15, 64, 4095, 4097, 9001, 300007}) {
    for (int kind = 0; kind < (size > 100000 ? 1 : 4); ++kind) {
      const std::vector<float> x = make(kind, size, random);
      const std::vector<int32_t> order = by_magnitude(x);
      for (const int64_t kept : {int64_t{0}, int64_t{1}, (size + 99) / 100, (size + 1) / 2, size}) {
        const int64_t bucket = std::max<int64_t>(kept, 100), of_bucket = std::min<int64_t>(kept, 70);
        const std::vector<int32_t> whole = first_of(order, kept);
        const std::vector<int32_t> parts = largest_of_buckets(x, bucket, of_bucket);
        for (int isa = 0; isa <= hvds_isa_detected(); ++isa) {
          hvds_set_isa(isa);
          for (const hvds_parallel* parallel : kWays) {
            check_exact(x, whole, workspace, parallel);
            check_mstopk(x, kept, workspace, parallel);
            check_sampled(x, kept, workspace, parallel);
            if (kept == 0) continue;
            check_buckets(x, parts, bucket, of_bucket, workspace, parallel);
            check_held(x, order, kept, 0.5f, workspace, parallel);
            if (size > 10000) continue;
            for (const float held : {-1.0f, 1e30f}) check_held(x, order, kept, held, workspace, parallel);
          }
        }
      }
    }
  }
  hvds_workspace_destroy(workspace);
  std::printf("checked %d\n", checked);
  return 0;
}
