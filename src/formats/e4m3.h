// E4M3 ("fn"): 1 sign, 4 exponent (bias 7), 3 mantissa bits; no infinities; NaN is 0x7F and 0xFF;
// largest 448, smallest normal 2^-6, smallest subnormal 2^-9.
// Source: OCP 8-bit Floating Point 1.0; spec/model.md 4.1. Checked against ml_dtypes
// (tests/golden).
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace winnow {

inline constexpr float kE4m3Max = 448.F;
inline constexpr std::uint8_t kE4m3NaN = 0x7F;

/// Exact value of `code`; NaN keeps the sign bit.
constexpr float decode_e4m3(std::uint8_t code) {
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80) << 24;
  const std::uint32_t magnitude = code & 0x7F;
  if (magnitude == 0x7F) return std::bit_cast<float>(sign | 0x7FC00000U);
  const float value = magnitude < 8
                          ? static_cast<float>(magnitude) * 0x1p-9F
                          : std::bit_cast<float>((magnitude << 20) + (std::uint32_t{120} << 23));
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
}

/// Nearest code, ties to even, saturating at ±448 (infinities too); the sign of zero is kept and
/// NaN gives 0x7F or 0xFF.
constexpr std::uint8_t encode_e4m3(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint8_t>((bits >> 24) & 0x80);
  std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint8_t>(sign | kE4m3NaN);
  magnitude = magnitude < 0x43E00000U ? magnitude : 0x43E00000U;  // 448
  if (magnitude < 0x3C800000U) {                                  // below 2^-6: multiples of 2^-9
    // Adding 2^14, whose unit in the last place is 2^-9, rounds to such a multiple.
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14F;
    return static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x46800000U));
  }
  const std::uint32_t rounded = magnitude + 0x7FFFFU + ((magnitude >> 20) & 1U);
  return static_cast<std::uint8_t>(sign | ((rounded >> 20) - (120U << 3)));
}

/// decode_e4m3 of every code.
inline constexpr std::array<float, 256> kE4m3Values = [] {
  std::array<float, 256> values{};
  for (std::size_t code = 0; code < values.size(); ++code) {
    values[code] = decode_e4m3(static_cast<std::uint8_t>(code));
  }
  return values;
}();

}  // namespace winnow
