// Arithmetic that does not depend on the thread it runs on.
#ifndef HVD_SPARSE_OPS_FLOAT_MODE_H_
#define HVD_SPARSE_OPS_FLOAT_MODE_H_

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace hvds {

// While it lives, this thread rounds to nearest even and keeps denormal numbers. TensorFlow's threads flush these to
// zero and Python's do not, so without it the bits of a sum would depend on who adds.
class StandardFloats {
 public:
#if defined(__SSE2__)
  StandardFloats() : saved_(_mm_getcsr()) { _mm_setcsr(kAllMasked); }
  ~StandardFloats() { _mm_setcsr(saved_); }
#else
  StandardFloats() {}
#endif
  StandardFloats(const StandardFloats&) = delete;
  StandardFloats& operator=(const StandardFloats&) = delete;

 private:
#if defined(__SSE2__)
  static constexpr unsigned kAllMasked = 0x1f80;  // no traps, round to nearest, no flushing
  unsigned saved_;
#endif
};

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_FLOAT_MODE_H_
