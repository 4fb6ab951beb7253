// The element types of the GPU kernels and their conversions, bitwise identical on the host and on the device.
#ifndef HVD_SPARSE_OPS_ELEMENTS_H_
#define HVD_SPARSE_OPS_ELEMENTS_H_

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#define HVDS_BOTH __host__ __device__
#else
#define HVDS_BOTH
#endif

namespace hvds {

struct Half {
  uint16_t bits;
};

struct Bfloat16 {
  uint16_t bits;
};

HVDS_BOTH inline uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

HVDS_BOTH inline float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

HVDS_BOTH inline float widen(float value) { return value; }

HVDS_BOTH inline float widen(Bfloat16 value) { return float_of(uint32_t(value.bits) << 16); }

HVDS_BOTH inline float widen(Half value) {
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(value.bits));  // exact, and a single instruction in a pass over memory
#else
  const uint32_t sign = uint32_t(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = value.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_of(sign | ((magnitude << 13) + 0x70000000u));           // Inf, NaN
  if (magnitude >= 0x0400u) return float_of(sign | ((magnitude << 13) + 0x38000000u));
  return float_of(sign | bits_of(float(magnitude) * 5.9604644775390625e-8f));  // a multiple of 2^-24
#endif
}

// Rounds to nearest, ties to even; NaN stays NaN, and values that are too large become Inf.
template <typename Element>
HVDS_BOTH Element narrow(float value);

template <>
HVDS_BOTH inline float narrow<float>(float value) {
  return value;
}

template <>
HVDS_BOTH inline Bfloat16 narrow<Bfloat16>(float value) {
  const uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return Bfloat16{uint16_t(bits >> 16 | 0x40u)};
  return Bfloat16{uint16_t((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}

template <>
HVDS_BOTH inline Half narrow<Half>(float value) {
  const uint32_t bits = bits_of(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return Half{uint16_t(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return Half{uint16_t(sign | 0x7c00u)};  // 65520 and above
  if (magnitude < 0x38800000u) {  // below 2^-14: the last bit of 0.5 is worth 2^-24, as is the result's
    return Half{uint16_t(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)))};
  }
  const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return Half{uint16_t(sign | ((rounded - 0x38000000u) >> 13))};
}

}  // namespace hvds

#endif  // HVD_SPARSE_OPS_ELEMENTS_H_
