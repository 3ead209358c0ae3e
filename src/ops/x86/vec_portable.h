// ops/x86/vec.h in plain C++, for machines without AVX2 (and other processors). The fused
// multiply-add is the C library's, which has the same bits with and without hardware for it.
#pragma once

#include "ops/x86/isa.h"

namespace winnow::ops::portable {

inline constexpr int kLanes = 16;
inline constexpr int kRegisters = 4;  // how many Vecs are worth keeping live

struct Vec {
  float v[kLanes];
};
struct Words {
  uint32_t v[kLanes];
};

#define WINNOW_EACH_LANE(type, expression)              \
  type r;                                               \
  for (int i = 0; i < kLanes; ++i) r.v[i] = expression; \
  return r

WINNOW_INLINE Vec zero() { WINNOW_EACH_LANE(Vec, 0.0F); }
WINNOW_INLINE Vec broadcast(float x) { WINNOW_EACH_LANE(Vec, x); }
WINNOW_INLINE Vec load(const float* p) { WINNOW_EACH_LANE(Vec, p[i]); }
WINNOW_INLINE void store(float* p, Vec x) {
  for (int i = 0; i < kLanes; ++i) p[i] = x.v[i];
}
WINNOW_INLINE Vec load_first(const float* p, int64_t n) {
  WINNOW_EACH_LANE(Vec, i < n ? p[i] : 0.0F);
}
WINNOW_INLINE void store_first(float* p, int64_t n, Vec x) {
  for (int i = 0; i < kLanes && i < n; ++i) p[i] = x.v[i];
}

WINNOW_INLINE Vec fma(Vec a, Vec b, Vec c) {
  WINNOW_EACH_LANE(Vec, __builtin_fmaf(a.v[i], b.v[i], c.v[i]));
}
WINNOW_INLINE Vec add(Vec a, Vec b) { WINNOW_EACH_LANE(Vec, a.v[i] + b.v[i]); }
WINNOW_INLINE Vec sub(Vec a, Vec b) { WINNOW_EACH_LANE(Vec, a.v[i] - b.v[i]); }
WINNOW_INLINE Vec mul(Vec a, Vec b) { WINNOW_EACH_LANE(Vec, a.v[i] * b.v[i]); }
WINNOW_INLINE Vec div(Vec a, Vec b) { WINNOW_EACH_LANE(Vec, a.v[i] / b.v[i]); }
WINNOW_INLINE Vec min(Vec a, Vec b) { WINNOW_EACH_LANE(Vec, a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
WINNOW_INLINE Vec max(Vec a, Vec b) { WINNOW_EACH_LANE(Vec, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
WINNOW_INLINE Vec negate(Vec a) { WINNOW_EACH_LANE(Vec, -a.v[i]); }
WINNOW_INLINE Vec select_less(Vec a, Vec b, Vec x, Vec y) {
  WINNOW_EACH_LANE(Vec, a.v[i] < b.v[i] ? x.v[i] : y.v[i]);
}

WINNOW_INLINE uint32_t bits_of_float(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}
WINNOW_INLINE float float_of_bits(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}
WINNOW_INLINE Words bits_of(Vec x) { WINNOW_EACH_LANE(Words, bits_of_float(x.v[i])); }
WINNOW_INLINE Vec from_bits(Words x) { WINNOW_EACH_LANE(Vec, float_of_bits(x.v[i])); }
/// Packed words are little-endian dwords of a row's bytes.
WINNOW_INLINE Words load_words(const void* p) {
  const auto* const bytes = static_cast<const uint8_t*>(p);
  WINNOW_EACH_LANE(Words, static_cast<uint32_t>(bytes[4 * i]) |
                              static_cast<uint32_t>(bytes[4 * i + 1]) << 8U |
                              static_cast<uint32_t>(bytes[4 * i + 2]) << 16U |
                              static_cast<uint32_t>(bytes[4 * i + 3]) << 24U);
}
WINNOW_INLINE Words add_words(Words a, Words b) { WINNOW_EACH_LANE(Words, a.v[i] + b.v[i]); }
WINNOW_INLINE Words broadcast_word(uint32_t x) { WINNOW_EACH_LANE(Words, x); }
template <int n>
WINNOW_INLINE Words shift_left(Words x) {
  WINNOW_EACH_LANE(Words, x.v[i] << n);
}
template <int n>
WINNOW_INLINE Words shift_right(Words x) {
  WINNOW_EACH_LANE(Words, x.v[i] >> n);
}

struct E2m1Table {
  float value[16];
};
WINNOW_INLINE E2m1Table e2m1_table() {
  return {
      {0.F, 0.5F, 1.F, 1.5F, 2.F, 3.F, 4.F, 6.F, -0.F, -0.5F, -1.F, -1.5F, -2.F, -3.F, -4.F, -6.F}};
}
WINNOW_INLINE Vec e2m1_low_nibble(const E2m1Table& table, Words codes) {
  WINNOW_EACH_LANE(Vec, table.value[codes.v[i] & 0xFU]);
}

WINNOW_INLINE float e4m3_value(uint32_t byte) {
  return float_of_bits(((byte & 0x80U) << 24U) | ((byte & 0x7FU) << 20U)) * 0x1p120F;
}
struct E4m3Tables {};
WINNOW_INLINE E4m3Tables e4m3_tables() { return {}; }
WINNOW_INLINE void e4m3_columns(const E4m3Tables& /*tables*/, Words words, Vec (&w)[4]) {
  for (int j = 0; j < 4; ++j) {
    for (int i = 0; i < kLanes; ++i) w[j].v[i] = e4m3_value(words.v[i] >> (8 * j));
  }
}
WINNOW_INLINE Vec e4m3_scales(const uint8_t* p) { WINNOW_EACH_LANE(Vec, e4m3_value(p[i])); }
WINNOW_INLINE Vec e8m0_scales(const uint8_t* p) {
  WINNOW_EACH_LANE(Vec,
                   float_of_bits(p[i] == 0 ? 0x00400000U : static_cast<uint32_t>(p[i]) << 23U));
}
WINNOW_INLINE Vec bf16_low(Words x) { WINNOW_EACH_LANE(Vec, float_of_bits(x.v[i] << 16U)); }
WINNOW_INLINE Vec bf16_high(Words x) { WINNOW_EACH_LANE(Vec, float_of_bits(x.v[i] & 0xFFFF0000U)); }
WINNOW_INLINE Vec load_bf16(const uint16_t* p) {
  WINNOW_EACH_LANE(Vec, float_of_bits(static_cast<uint32_t>(p[i]) << 16U));
}

WINNOW_INLINE Vec lookup_codes(const float* table, const uint8_t* codes) {
  WINNOW_EACH_LANE(Vec, table[(codes[i / 2] >> (i % 2 * 4)) & 0xF]);
}

WINNOW_INLINE float sum_lanes(Vec x) {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) x.v[i] += x.v[i + half];
  }
  return x.v[0];
}

/// Lane 4r + k is sum_lanes(x[4k + r]), joined in the same order.
WINNOW_INLINE Vec join_sixteen(const Vec (&x)[16]) {
  WINNOW_EACH_LANE(Vec, sum_lanes(x[i % 4 * 4 + i / 4]));
}

#undef WINNOW_EACH_LANE

}  // namespace winnow::ops::portable
