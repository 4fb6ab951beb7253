// Element types and operations of the merging of streams.
#ifndef HVD_SPARSE_OPS_MERGE_ELEMENTS_H_
#define HVD_SPARSE_OPS_MERGE_ELEMENTS_H_

#include <cstdint>
#include <limits>

#include "merge.h"
#include "../common/elements.h"

namespace hvds {

// The type used for computing with elements, and the conversions to it and back.
template <typename Element>
struct Arithmetic {
  using Number = float;
  static Number widen(Element element) { return hvds::widen(element); }
  static Element narrow(Number number) { return hvds::narrow<Element>(number); }
};

template <>
struct Arithmetic<double> {
  using Number = double;
  static double widen(double element) { return element; }
  static double narrow(double number) { return number; }
};

struct Sum {
  template <typename Number>
  static constexpr Number neutral() { return 0; }
  template <typename Number>
  static Number of(Number a, Number b) { return a + b; }
};

struct Product {
  template <typename Number>
  static constexpr Number neutral() { return 1; }
  template <typename Number>
  static Number of(Number a, Number b) { return a * b; }
};

struct Maximum {
  template <typename Number>
  static constexpr Number neutral() { return -std::numeric_limits<Number>::infinity(); }
  template <typename Number>
  static Number of(Number a, Number b) { return b > a || b != b ? b : a; }
};

struct Minimum {
  template <typename Number>
  static constexpr Number neutral() { return std::numeric_limits<Number>::infinity(); }
  template <typename Number>
  static Number of(Number a, Number b) { return b < a || b != b ? b : a; }
};

// Calls body with a null pointer to an element of the dtype.
template <typename Body>
auto with_element(hvds_dtype dtype, Body&& body) {
  if (dtype == HVDS_FLOAT16) return body(static_cast<Half*>(nullptr));
  if (dtype == HVDS_FLOAT64) return body(static_cast<double*>(nullptr));
  return body(static_cast<float*>(nullptr));
}

// The same with the operation.
template <typename Body>
auto with_operation(hvds_dtype dtype, hvds_combine combine, Body&& body) {
  return with_element(dtype, [&](auto* element) {
    if (combine == HVDS_MAX) return body(element, Maximum());
    if (combine == HVDS_MIN) return body(element, Minimum());
    if (combine == HVDS_PRODUCT) return body(element, Product());
    return body(element, Sum());
  });
}

inline int64_t item_size(hvds_dtype dtype) { return dtype == HVDS_FLOAT64 ? 8 : dtype == HVDS_FLOAT16 ? 2 : 4; }

template <typename Element, typename Operation>
Element neutral() {
  return Arithmetic<Element>::narrow(Operation::template neutral<typename Arithmetic<Element>::Number>());
}

template <typename Element, typename Operation>
Element combined(Element a, Element b) {
  using Numbers = Arithmetic<Element>;
  return Numbers::narrow(Operation::of(Numbers::widen(a), Numbers::widen(b)));
}

// into[i] = into[i] o from[i].
template <typename Element, typename Operation>
void combine_run(Element* into, const Element* from, int64_t count) {
  for (int64_t i = 0; i < count; ++i) into[i] = combined<Element, Operation>(into[i], from[i]);
}

// into[i] = neutral o from[i].
template <typename Element, typename Operation>
void begin_run(Element* __restrict into, const Element* __restrict from, int64_t count) {
  const Element start = neutral<Element, Operation>();
  for (int64_t i = 0; i < count; ++i) into[i] = combined<Element, Operation>(start, from[i]);
}

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_MERGE_ELEMENTS_H_
