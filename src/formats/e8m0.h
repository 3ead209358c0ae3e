// E8M0, the scale of MXFP8: a bare exponent, 2^(code - 127); 255 is NaN; there is no sign or zero.
// Source: OCP Microscaling Formats 1.0; spec/model.md 2 and 4.1.
#pragma once

#include <bit>
#include <cstdint>

namespace winnow {

inline constexpr std::uint8_t kE8m0NaN = 255;

/// Exact value of `code` (code 0 is a subnormal float).
constexpr float decode_e8m0(std::uint8_t code) {
  if (code == 0) return 0x1p-127F;
  return std::bit_cast<float>(code == kE8m0NaN ? 0x7FC00000U : std::uint32_t{code} << 23);
}

}  // namespace winnow
