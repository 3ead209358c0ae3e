// E2M1, the four-bit float of NVFP4: sign << 3 | magnitude code, magnitudes 0 .5 1 1.5 2 3 4 6.
// Source: OCP Microscaling Formats 1.0; spec/model.md 4.1. Checked against ml_dtypes
// (tests/golden).
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace winnow {

/// Value of each of the 16 codes; code 8 is -0.
inline constexpr std::array<float, 16> kE2m1Values = {
    0.F, 0.5F, 1.F, 1.5F, 2.F, 3.F, 4.F, 6.F, -0.F, -0.5F, -1.F, -1.5F, -2.F, -3.F, -4.F, -6.F};

/// Value of the low nibble of `code`.
constexpr float decode_e2m1(std::uint8_t code) { return kE2m1Values[code & 0xF]; }

/// Magnitude code 0…7 of |x| in units of `scale`: the nearest, ties to the even code, saturating
/// at 6. Compares with t * scale (exact for E4M3 scales) because a quotient could step over a tie.
/// NaN gives 0.
constexpr std::uint8_t e2m1_magnitude(float magnitude, float scale) {
  const int code = int{magnitude > 0.25F * scale} + int{magnitude >= 0.75F * scale} +
                   int{magnitude > 1.25F * scale} + int{magnitude >= 1.75F * scale} +
                   int{magnitude > 2.5F * scale} + int{magnitude >= 3.5F * scale} +
                   int{magnitude > 5.F * scale};
  return static_cast<std::uint8_t>(code);
}

/// Code of x, keeping its sign (so small negative values give code 8, as ml_dtypes does). The
/// quantisers of nvfp4_cache.h and nvfp4_weight.h never store code 8.
constexpr std::uint8_t encode_e2m1(float x) {
  const bool negative = std::bit_cast<std::uint32_t>(x) >> 31 != 0;
  return static_cast<std::uint8_t>(e2m1_magnitude(negative ? -x : x, 1.F) | (negative ? 8 : 0));
}

}  // namespace winnow
