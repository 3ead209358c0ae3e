// IEEE 754 binary16, which some checkpoints store.
#pragma once

#include <bit>
#include <cstdint>

namespace winnow {

using Fp16 = std::uint16_t;

/// Exact, subnormals included; NaN becomes quiet and keeps sign and payload.
constexpr float decode_fp16(Fp16 code) {
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x8000) << 16;
  const std::uint32_t exponent = (code >> 10) & 0x1F;
  const std::uint32_t mantissa = code & 0x3FF;
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
  }
  if (exponent == 31) {
    const std::uint32_t quiet = mantissa != 0 ? 0x400000U : 0U;
    return std::bit_cast<float>(sign | 0x7F800000U | quiet | (mantissa << 13));
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

/// Nearest, ties to even; overflow gives infinity; NaN stays a quiet NaN of the same sign.
constexpr Fp16 encode_fp16(float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint32_t>((bits >> 16) & 0x8000);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) {
    return static_cast<Fp16>(sign | 0x7E00U | ((magnitude >> 13) & 0x1FFU));
  }
  if (magnitude >= 0x477FF000U) return static_cast<Fp16>(sign | 0x7C00U);  // 65520 and above
  if (magnitude < 0x38800000U) {  // below 2^-14: multiples of 2^-24, the last place of 0.5
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<Fp16>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U));
  }
  const std::uint32_t rounded = magnitude + 0xFFFU + ((magnitude >> 13) & 1U);
  return static_cast<Fp16>(sign | ((rounded >> 13) - (112U << 10)));
}

}  // namespace winnow
