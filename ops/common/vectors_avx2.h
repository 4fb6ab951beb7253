// Vectors for AVX2 with F16C, BMI and POPCNT, used by the kernels of select, momentum, quantize and lars.
#ifndef HVD_SPARSE_OPS_VECTORS_AVX2_H_
#define HVD_SPARSE_OPS_VECTORS_AVX2_H_

#include <immintrin.h>

#include <cstdint>

#include "elements.h"

#define HVDS_TARGET __attribute__((target("avx2,f16c,bmi,bmi2,popcnt")))
#define HVDS_INLINE HVDS_TARGET inline __attribute__((always_inline))

namespace hvds {
namespace avx2 {
namespace {

typedef float Floats __attribute__((vector_size(32)));
typedef double Doubles __attribute__((vector_size(32)));
typedef int32_t Ints __attribute__((vector_size(32)));
constexpr int kWidth = 8;  // floats per vector

HVDS_INLINE Floats load(const float* from) { return _mm256_loadu_ps(from); }
HVDS_INLINE Doubles load(const double* from) { return _mm256_loadu_pd(from); }

HVDS_INLINE Floats load(const Half* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

HVDS_INLINE Floats load(const Bfloat16* from) {
  const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

HVDS_INLINE Doubles load_doubles(const double* from) { return load(from); }
HVDS_INLINE Doubles load_doubles(const float* from) { return _mm256_cvtps_pd(_mm_loadu_ps(from)); }

HVDS_INLINE Doubles load_doubles(const Half* from) {
  return _mm256_cvtps_pd(_mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
}

HVDS_INLINE Doubles load_doubles(const Bfloat16* from) {
  const __m128i halves = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
  return _mm256_cvtps_pd(_mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(halves), 16)));
}

HVDS_INLINE void store(float* to, Floats values) { _mm256_storeu_ps(to, values); }
HVDS_INLINE void store(double* to, Doubles values) { _mm256_storeu_pd(to, values); }

// Narrow types round to nearest, ties to even.
HVDS_INLINE void store(Half* to, Floats values) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

HVDS_INLINE void store(Bfloat16* to, Floats values) {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i upper = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i nearest =
      _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
  const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(values, values, _CMP_UNORD_Q));
  const __m256i narrow = _mm256_blendv_epi8(nearest, quiet, is_nan);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm_packus_epi32(_mm256_castsi256_si128(narrow), _mm256_extracti128_si256(narrow, 1)));
}

// Non-temporal, to an address aligned to the vector's length; end_streaming() makes it visible to other threads.
HVDS_INLINE void stream(float* to, Floats values) { _mm256_stream_ps(to, values); }
HVDS_INLINE void end_streaming() { _mm_sfence(); }

HVDS_INLINE Floats repeated(float value) { return _mm256_set1_ps(value); }
HVDS_INLINE Doubles repeated(double value) { return _mm256_set1_pd(value); }
HVDS_INLINE Ints repeated(int32_t value) { return reinterpret_cast<Ints>(_mm256_set1_epi32(value)); }

}  // namespace
}  // namespace avx2
}  // namespace hvds

#endif  // HVD_SPARSE_OPS_VECTORS_AVX2_H_
