// ops/x86/vec.h on AVX2 with FMA.
#pragma once

#include <immintrin.h>

#include "ops/x86/isa.h"

namespace winnow::ops::avx2 {

inline constexpr int kLanes = 16;
inline constexpr int kRegisters = 8;  // how many Vecs fit in registers

/// Lanes 0–7 and 8–15.
struct Vec {
  __m256 lo;
  __m256 hi;
};
struct Words {
  __m256i lo;
  __m256i hi;
};

WINNOW_INLINE Vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
WINNOW_INLINE Vec broadcast(float x) {
  const __m256 v = _mm256_set1_ps(x);
  return {v, v};
}
WINNOW_INLINE Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
WINNOW_INLINE void store(float* p, Vec x) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}
WINNOW_INLINE __m256i first_lanes(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
WINNOW_INLINE Vec load_first(const float* p, int64_t n) {
  return {_mm256_maskload_ps(p, first_lanes(n)), _mm256_maskload_ps(p + 8, first_lanes(n - 8))};
}
WINNOW_INLINE void store_first(float* p, int64_t n, Vec x) {
  _mm256_maskstore_ps(p, first_lanes(n), x.lo);
  _mm256_maskstore_ps(p + 8, first_lanes(n - 8), x.hi);
}

WINNOW_INLINE Vec fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
WINNOW_INLINE Vec add(Vec a, Vec b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
WINNOW_INLINE Vec sub(Vec a, Vec b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
WINNOW_INLINE Vec mul(Vec a, Vec b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
WINNOW_INLINE Vec div(Vec a, Vec b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
WINNOW_INLINE Vec min(Vec a, Vec b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
WINNOW_INLINE Vec max(Vec a, Vec b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
WINNOW_INLINE Vec negate(Vec a) {
  const __m256 sign = _mm256_set1_ps(-0.0F);
  return {_mm256_xor_ps(a.lo, sign), _mm256_xor_ps(a.hi, sign)};
}
WINNOW_INLINE Vec select_less(Vec a, Vec b, Vec x, Vec y) {
  return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}

WINNOW_INLINE Words bits_of(Vec x) {
  return {_mm256_castps_si256(x.lo), _mm256_castps_si256(x.hi)};
}
WINNOW_INLINE Vec from_bits(Words x) {
  return {_mm256_castsi256_ps(x.lo), _mm256_castsi256_ps(x.hi)};
}
WINNOW_INLINE Words load_words(const void* p) {
  const auto* const q = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
WINNOW_INLINE Words add_words(Words a, Words b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
WINNOW_INLINE Words broadcast_word(uint32_t x) {
  const __m256i v = _mm256_set1_epi32(static_cast<int>(x));
  return {v, v};
}
template <int n>
WINNOW_INLINE Words shift_left(Words x) {
  return {_mm256_slli_epi32(x.lo, n), _mm256_slli_epi32(x.hi, n)};
}
template <int n>
WINNOW_INLINE Words shift_right(Words x) {
  return {_mm256_srli_epi32(x.lo, n), _mm256_srli_epi32(x.hi, n)};
}

/// Eight magnitudes: a permutation here has eight entries, so the sign bit is moved by hand.
using E2m1Table = __m256;
WINNOW_INLINE E2m1Table e2m1_table() {
  return _mm256_setr_ps(0.F, 0.5F, 1.F, 1.5F, 2.F, 3.F, 4.F, 6.F);
}
WINNOW_INLINE __m256 e2m1_half(E2m1Table table, __m256i codes) {
  const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(codes, 28),
                                        _mm256_set1_epi32(static_cast<int>(0x80000000U)));
  return _mm256_xor_ps(_mm256_permutevar8x32_ps(table, codes), _mm256_castsi256_ps(sign));
}
WINNOW_INLINE Vec e2m1_low_nibble(E2m1Table table, Words codes) {
  return {e2m1_half(table, codes.lo), e2m1_half(table, codes.hi)};
}

/// Byte `n` of each word as E4M3. The exponent field lands where fp32's low exponent bits are, and
/// 2^120 makes up for the bias, exactly also for subnormals.
template <int n>
WINNOW_INLINE __m256 e4m3_half(__m256i x) {
  const __m256i top = n == 3 ? x : _mm256_slli_epi32(x, 24 - 8 * n);
  const __m256i fields =
      _mm256_and_si256(_mm256_srai_epi32(top, 4), _mm256_set1_epi32(static_cast<int>(0x87F00000U)));
  return _mm256_mul_ps(_mm256_castsi256_ps(fields), _mm256_set1_ps(0x1p120F));
}
struct E4m3Tables {};
WINNOW_INLINE E4m3Tables e4m3_tables() { return {}; }
WINNOW_INLINE void e4m3_columns(const E4m3Tables& /*tables*/, Words words, Vec (&w)[4]) {
  w[0] = {e4m3_half<0>(words.lo), e4m3_half<0>(words.hi)};
  w[1] = {e4m3_half<1>(words.lo), e4m3_half<1>(words.hi)};
  w[2] = {e4m3_half<2>(words.lo), e4m3_half<2>(words.hi)};
  w[3] = {e4m3_half<3>(words.lo), e4m3_half<3>(words.hi)};
}
WINNOW_INLINE __m256i widen_bytes(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
WINNOW_INLINE __m256 e4m3_scales_half(const uint8_t* p) {
  return _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(widen_bytes(p), 20)),
                       _mm256_set1_ps(0x1p120F));
}
WINNOW_INLINE Vec e4m3_scales(const uint8_t* p) {
  return {e4m3_scales_half(p), e4m3_scales_half(p + 8)};
}
WINNOW_INLINE __m256 e8m0_scales_half(const uint8_t* p) {
  return _mm256_castsi256_ps(
      _mm256_max_epu32(_mm256_slli_epi32(widen_bytes(p), 23), _mm256_set1_epi32(0x00400000)));
}
WINNOW_INLINE Vec e8m0_scales(const uint8_t* p) {
  return {e8m0_scales_half(p), e8m0_scales_half(p + 8)};
}
WINNOW_INLINE Vec bf16_low(Words x) { return from_bits(shift_left<16>(x)); }
WINNOW_INLINE Vec bf16_high(Words x) {
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xFFFF0000U));
  return from_bits({_mm256_and_si256(x.lo, mask), _mm256_and_si256(x.hi, mask)});
}
WINNOW_INLINE Vec load_bf16(const uint16_t* p) {
  const auto* const q = reinterpret_cast<const __m128i*>(p);
  return from_bits(shift_left<16>(Words{_mm256_cvtepu16_epi32(_mm_loadu_si128(q)),
                                        _mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1))}));
}

/// Entries 8 … 15 of a table are those of 0 … 7 with the sign changed.
WINNOW_INLINE __m256 lookup_half(__m256 table, const uint8_t* codes) {
  int four;
  __builtin_memcpy(&four, codes, sizeof four);
  const __m256i bytes = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(four));
  return e2m1_half(table, _mm256_or_si256(bytes, _mm256_slli_epi64(bytes, 28)));
}
WINNOW_INLINE Vec lookup_codes(const float* table, const uint8_t* codes) {
  const __m256 magnitudes = _mm256_loadu_ps(table);
  return {lookup_half(magnitudes, codes), lookup_half(magnitudes, codes + 4)};
}

WINNOW_INLINE float sum_lanes(Vec x) {
  const __m256 s8 = _mm256_add_ps(x.lo, x.hi);
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

WINNOW_INLINE __m256 join_half(const Vec (&x)[16], int first) {
  __m256 a[4];
  WINNOW_UNROLL
  for (int i = 0; i < 4; ++i) {
    const Vec& even = x[first + 4 * i];
    const Vec& odd = x[first + 4 * i + 1];
    const __m256 p = _mm256_add_ps(even.lo, even.hi);
    const __m256 q = _mm256_add_ps(odd.lo, odd.hi);
    a[i] = _mm256_add_ps(_mm256_permute2f128_ps(p, q, 0x20), _mm256_permute2f128_ps(p, q, 0x31));
  }
  const __m256 b0 =
      _mm256_add_ps(_mm256_shuffle_ps(a[0], a[1], 0x44), _mm256_shuffle_ps(a[0], a[1], 0xEE));
  const __m256 b1 =
      _mm256_add_ps(_mm256_shuffle_ps(a[2], a[3], 0x44), _mm256_shuffle_ps(a[2], a[3], 0xEE));
  return _mm256_add_ps(_mm256_shuffle_ps(b0, b1, 0x88), _mm256_shuffle_ps(b0, b1, 0xDD));
}
/// Lane 4r + k is sum_lanes(x[4k + r]), joined in the same order.
WINNOW_INLINE Vec join_sixteen(const Vec (&x)[16]) { return {join_half(x, 0), join_half(x, 2)}; }

}  // namespace winnow::ops::avx2
