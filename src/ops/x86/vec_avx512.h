// ops/x86/vec.h on AVX-512 (F, BW, VL, DQ, VBMI).
#pragma once

#include <immintrin.h>

#include "ops/x86/isa.h"

namespace winnow::ops::avx512 {

inline constexpr int kLanes = 16;
inline constexpr int kRegisters = 32;  // how many Vecs fit in registers

using Vec = __m512;     // 16 × fp32
using Words = __m512i;  // 16 × 32 bits
using Mask = __mmask16;

WINNOW_INLINE Vec zero() { return _mm512_setzero_ps(); }
WINNOW_INLINE Vec broadcast(float x) { return _mm512_set1_ps(x); }
WINNOW_INLINE Vec load(const float* p) { return _mm512_loadu_ps(p); }
WINNOW_INLINE void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
/// The first n ≤ 16 lanes; the others are 0, and their memory is not touched.
WINNOW_INLINE Mask first_lanes(int64_t n) {
  return n >= kLanes ? Mask{0xFFFF} : static_cast<Mask>((1U << static_cast<unsigned>(n)) - 1U);
}
WINNOW_INLINE Vec load_first(const float* p, int64_t n) {
  return _mm512_maskz_loadu_ps(first_lanes(n), p);
}
WINNOW_INLINE void store_first(float* p, int64_t n, Vec x) {
  _mm512_mask_storeu_ps(p, first_lanes(n), x);
}

WINNOW_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
WINNOW_INLINE Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
WINNOW_INLINE Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
WINNOW_INLINE Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
WINNOW_INLINE Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
/// a < b ? a : b, so b when either is NaN; max likewise.
WINNOW_INLINE Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
WINNOW_INLINE Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
WINNOW_INLINE Vec negate(Vec a) {
  return _mm512_castsi512_ps(
      _mm512_xor_si512(_mm512_castps_si512(a), _mm512_set1_epi32(static_cast<int>(0x80000000U))));
}
/// a < b ? x : y, lane by lane; an ordered comparison.
WINNOW_INLINE Vec select_less(Vec a, Vec b, Vec x, Vec y) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}

WINNOW_INLINE Words bits_of(Vec x) { return _mm512_castps_si512(x); }
WINNOW_INLINE Vec from_bits(Words x) { return _mm512_castsi512_ps(x); }
WINNOW_INLINE Words load_words(const void* p) { return _mm512_loadu_si512(p); }
WINNOW_INLINE Words add_words(Words a, Words b) { return _mm512_add_epi32(a, b); }
WINNOW_INLINE Words broadcast_word(uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
template <int n>
WINNOW_INLINE Words shift_left(Words x) {
  return _mm512_slli_epi32(x, n);
}
template <int n>
WINNOW_INLINE Words shift_right(Words x) {
  return _mm512_srli_epi32(x, n);
}

/// The E2M1 values, indexed by the low nibble of each word.
using E2m1Table = __m512;
WINNOW_INLINE E2m1Table e2m1_table() {
  return _mm512_setr_ps(0.F, 0.5F, 1.F, 1.5F, 2.F, 3.F, 4.F, 6.F, -0.F, -0.5F, -1.F, -1.5F, -2.F,
                        -3.F, -4.F, -6.F);
}
WINNOW_INLINE Vec e2m1_low_nibble(E2m1Table table, Words codes) {
  return _mm512_permutexvar_ps(codes, table);
}

/// E4M3 as BF16, which holds it exactly: the upper and lower byte of each magnitude.
struct E4m3Tables {
  __m512i upper[2];
  __m512i lower[2];
};
/// 128 bytes, computed by the compiler.
struct E4m3Bytes {
  alignas(64) uint8_t upper[128];
  alignas(64) uint8_t lower[128];
};
constexpr E4m3Bytes e4m3_bytes() {
  E4m3Bytes bytes{};
  for (unsigned magnitude = 0; magnitude < 128; ++magnitude) {
    unsigned exponent = magnitude >> 3U;
    unsigned mantissa = magnitude & 7U;
    if (exponent > 0) {
      exponent += 120;
    } else if (mantissa > 0) {  // subnormal: m · 2^-9, with its leading one moved to bit 3
      exponent = 121;
      for (; mantissa < 8; mantissa *= 2) --exponent;
      mantissa &= 7U;
    }
    const unsigned bf16 = exponent << 7U | mantissa << 4U;
    bytes.upper[magnitude] = static_cast<uint8_t>(bf16 >> 8U);
    bytes.lower[magnitude] = static_cast<uint8_t>(bf16 & 0xFFU);
  }
  return bytes;
}
inline constexpr E4m3Bytes kE4m3Bytes = e4m3_bytes();

WINNOW_INLINE E4m3Tables e4m3_tables() {
  return {{_mm512_load_si512(kE4m3Bytes.upper), _mm512_load_si512(kE4m3Bytes.upper + 64)},
          {_mm512_load_si512(kE4m3Bytes.lower), _mm512_load_si512(kE4m3Bytes.lower + 64)}};
}
/// Byte j of each word as E4M3 in w[j]; NaN codes are not expected. Ten instructions: sort the
/// bytes so that interleaving makes pairs of columns, look both halves up, put the sign in,
/// interleave, and widen each BF16 of a pair.
WINNOW_INLINE void e4m3_columns(const E4m3Tables& tables, Words words, Vec (&w)[4]) {
  const __m512i order =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  const __m512i codes = _mm512_shuffle_epi8(words, order);
  const __m512i lower = _mm512_permutex2var_epi8(tables.lower[0], codes, tables.lower[1]);
  const __m512i magnitude = _mm512_permutex2var_epi8(tables.upper[0], codes, tables.upper[1]);
  // magnitude | (codes & 0x80)
  const __m512i upper =
      _mm512_ternarylogic_epi32(magnitude, codes, _mm512_set1_epi8(static_cast<char>(0x80)), 0xF8);
  const __m512i first = _mm512_unpacklo_epi8(lower, upper);   // columns 0 and 1
  const __m512i second = _mm512_unpackhi_epi8(lower, upper);  // columns 2 and 3
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xFFFF0000U));
  w[0] = _mm512_castsi512_ps(_mm512_slli_epi32(first, 16));
  w[1] = _mm512_castsi512_ps(_mm512_and_si512(first, high));
  w[2] = _mm512_castsi512_ps(_mm512_slli_epi32(second, 16));
  w[3] = _mm512_castsi512_ps(_mm512_and_si512(second, high));
}
/// 16 scale bytes in [0, 0x7E] as E4M3.
WINNOW_INLINE Vec e4m3_scales(const uint8_t* p) {
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(bytes, 20)), _mm512_set1_ps(0x1p120F));
}
/// 16 scale bytes in [0, 254] as E8M0: 2^(byte - 127), of which 2^-127 is a subnormal float.
WINNOW_INLINE Vec e8m0_scales(const uint8_t* p) {
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm512_castsi512_ps(
      _mm512_max_epu32(_mm512_slli_epi32(bytes, 23), _mm512_set1_epi32(0x00400000)));
}
/// The BF16 in the lower and upper half of each word.
WINNOW_INLINE Vec bf16_low(Words x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }
WINNOW_INLINE Vec bf16_high(Words x) {
  return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(0xFFFF0000U))));
}
/// 16 consecutive BF16.
WINNOW_INLINE Vec load_bf16(const uint16_t* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
}

/// table[code] for the sixteen codes of eight bytes, low nibble first: each lane gets eight bits
/// from its code on, of which a permutation reads four.
WINNOW_INLINE Vec lookup_codes(const float* table, const uint8_t* codes) {
  const __m512i shifts =
      _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60);
  int64_t eight;
  __builtin_memcpy(&eight, codes, sizeof eight);
  const __m512i nibbles = _mm512_multishift_epi64_epi8(shifts, _mm512_set1_epi64(eight));
  return _mm512_permutexvar_ps(nibbles, _mm512_loadu_ps(table));
}

/// Lane i + lane i+8, then +4, +2, +1: the join of rms_norm.h.
WINNOW_INLINE float sum_lanes(Vec x) {
  const __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

/// Lane 4r + k is sum_lanes(x[4k + r]), joined in the same order.
WINNOW_INLINE Vec join_sixteen(const Vec (&x)[16]) {
  Vec a[8];
  WINNOW_UNROLL
  for (int i = 0; i < 8; ++i) {  // lane i + lane i+8; a vector now holds two
    a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0x44),
                         _mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0xEE));
  }
  Vec b[4];
  WINNOW_UNROLL
  for (int i = 0; i < 4; ++i) {  // + 4
    b[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0x88),
                         _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0xDD));
  }
  Vec c[2];
  WINNOW_UNROLL
  for (int i = 0; i < 2; ++i) {  // + 2
    c[i] = _mm512_add_ps(_mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0x44),
                         _mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0xEE));
  }
  return _mm512_add_ps(_mm512_shuffle_ps(c[0], c[1], 0x88),  // + 1
                       _mm512_shuffle_ps(c[0], c[1], 0xDD));
}

}  // namespace winnow::ops::avx512
