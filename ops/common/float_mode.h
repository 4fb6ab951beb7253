// Arithmetic that does not depend on the thread it runs on.
#ifndef HVD_SPARSE_OPS_FLOAT_MODE_H_
#define HVD_SPARSE_OPS_FLOAT_MODE_H_

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace hvds {

// While an instance lives, its thread rounds and treats denormal numbers as this x86 control word says; on other
// processors it has no effect.
class FloatMode {
 public:
#if defined(__SSE2__)
  explicit FloatMode(unsigned control) : saved_(_mm_getcsr()) { _mm_setcsr(control); }
  ~FloatMode() { _mm_setcsr(saved_); }
#else
  explicit FloatMode(unsigned) {}
#endif
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

#if defined(__SSE2__)
 private:
  unsigned saved_;
#endif
};

// Keeps denormal numbers. TensorFlow's threads flush them to zero and Python's do not, so without this the bits of a
// sum would depend on the thread that computes it.
class StandardFloats : public FloatMode {
 public:
  StandardFloats() : FloatMode(kAllMasked) {}

 private:
  static constexpr unsigned kAllMasked = 0x1f80;  // no traps, round to nearest even, no flushing
};

// Treats denormal inputs as zero and flushes denormal results, as TensorFlow's own operations do in eager mode.
class FlushedFloats : public FloatMode {
 public:
  FlushedFloats() : FloatMode(kFlushing) {}

 private:
  static constexpr unsigned kFlushing = 0x9fc0;  // the same, but inputs and results are flushed
};

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_FLOAT_MODE_H_
