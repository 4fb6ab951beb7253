// Reads single elements of acc before anything was summed.
#ifndef HVD_SPARSE_OPS_SELECT_CPU_INPUT_H_
#define HVD_SPARSE_OPS_SELECT_CPU_INPUT_H_

#include <type_traits>

#include "select_cpu_call.h"

namespace hvds {

constexpr int64_t kAskedFor = 32;  // random reads in flight at the same time

// Calls body with a null pointer of the C++ type that represents a dtype.
template <typename Body>
void with_type(int dtype, Body&& body) {
  if (dtype == HVDS_FLOAT16) return body(static_cast<const Half*>(nullptr));
  if (dtype == HVDS_BFLOAT16) return body(static_cast<const Bfloat16*>(nullptr));
  return body(static_cast<const float*>(nullptr));
}

template <typename Part>
Key sum_at(const Input& input, int64_t at) {
  const auto* parts = static_cast<const Part*>(input.parts);
  float sum = widen(parts[at]);
  for (int64_t part = 1; part < input.count; ++part) sum += widen(parts[part * input.stride + at]);
  if (input.residual != nullptr) sum += input.residual[at];
  return key_of(sum);
}

template <typename Part>
void ask_for(const Input& input, int64_t at) {
  const auto* parts = static_cast<const Part*>(input.parts);
  for (int64_t part = 0; part < input.count; ++part) __builtin_prefetch(parts + part * input.stride + at);
  if (input.residual != nullptr) __builtin_prefetch(input.residual + at);
}

// Writes the magnitudes of `neighbours` elements starting at position(group), for the groups [begin, end).
template <typename Position>
void draw(const Input& input, int64_t begin, int64_t end, int64_t neighbours, Position&& position, Key* sample) {
  with_type(input.dtype, [&](auto* part) {
    using Part = std::remove_const_t<std::remove_pointer_t<decltype(part)>>;
    int64_t positions[kAskedFor];
    for (int64_t group = begin; group < end + kAskedFor; ++group) {
      int64_t& place = positions[group % kAskedFor];
      if (group >= begin + kAskedFor) {
        Key* keys = sample + (group - kAskedFor) * neighbours;
        for (int64_t j = 0; j < neighbours; ++j) keys[j] = sum_at<Part>(input, place + j);
      }
      if (group < end) {
        place = position(group);
        ask_for<Part>(input, place);
      }
    }
  });
}

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_SELECT_CPU_INPUT_H_
