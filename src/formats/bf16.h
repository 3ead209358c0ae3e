// BF16: the upper half of a float.
#pragma once

#include <bit>
#include <cstdint>

namespace winnow {

using Bf16 = std::uint16_t;

/// Exact.
constexpr float decode_bf16(Bf16 code) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(code) << 16);
}

/// Nearest, ties to even; overflow gives infinity; NaN stays a (quiet) NaN of the same sign.
constexpr Bf16 encode_bf16(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<Bf16>((bits >> 16) | 0x40U);
  return static_cast<Bf16>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

/// x rounded to BF16.
constexpr float round_to_bf16(float x) { return decode_bf16(encode_bf16(x)); }

}  // namespace winnow
