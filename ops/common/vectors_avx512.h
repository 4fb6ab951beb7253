// Vectors for AVX-512 (F, BW, VL and DQ), used by the kernels of select, momentum, quantize and lars.
#ifndef HVD_SPARSE_OPS_VECTORS_AVX512_H_
#define HVD_SPARSE_OPS_VECTORS_AVX512_H_

#include <immintrin.h>

#include <cstdint>

#include "elements.h"

#define HVDS_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,f16c,bmi,bmi2,popcnt")))
#define HVDS_INLINE HVDS_TARGET inline __attribute__((always_inline))

namespace hvds {
namespace avx512 {
namespace {

typedef float Floats __attribute__((vector_size(64)));
typedef double Doubles __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
constexpr int kWidth = 16;  // floats per vector

HVDS_INLINE Floats load(const float* from) { return _mm512_loadu_ps(from); }
HVDS_INLINE Doubles load(const double* from) { return _mm512_loadu_pd(from); }

HVDS_INLINE Floats load(const Half* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

HVDS_INLINE Floats load(const Bfloat16* from) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

HVDS_INLINE Doubles load_doubles(const double* from) { return load(from); }
HVDS_INLINE Doubles load_doubles(const float* from) { return _mm512_cvtps_pd(_mm256_loadu_ps(from)); }

HVDS_INLINE Doubles load_doubles(const Half* from) {
  return _mm512_cvtps_pd(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}

HVDS_INLINE Doubles load_doubles(const Bfloat16* from) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm512_cvtps_pd(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16)));
}

HVDS_INLINE void store(float* to, Floats values) { _mm512_storeu_ps(to, values); }
HVDS_INLINE void store(double* to, Doubles values) { _mm512_storeu_pd(to, values); }

// Narrow types round to nearest, ties to even.
HVDS_INLINE void store(Half* to, Floats values) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

HVDS_INLINE void store(Bfloat16* to, Floats values) {
  const __m512i bits = _mm512_castps_si512(values);
  const __m512i upper = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
  const __m512i nearest =
      _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
  const __m512i quiet = _mm512_or_si512(upper, _mm512_set1_epi32(0x40));
  const __m512i narrow = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q), nearest, quiet);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(narrow));
}

// Non-temporal, to an address aligned to the vector's length; end_streaming() makes it visible to other threads.
HVDS_INLINE void stream(float* to, Floats values) { _mm512_stream_ps(to, values); }
HVDS_INLINE void end_streaming() { _mm_sfence(); }

HVDS_INLINE Floats repeated(float value) { return _mm512_set1_ps(value); }
HVDS_INLINE Doubles repeated(double value) { return _mm512_set1_pd(value); }
HVDS_INLINE Ints repeated(int32_t value) { return reinterpret_cast<Ints>(_mm512_set1_epi32(value)); }

}  // namespace
}  // namespace avx512
}  // namespace hvds

#endif  // HVD_SPARSE_OPS_VECTORS_AVX512_H_
