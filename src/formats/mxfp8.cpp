#include "formats/mxfp8.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "formats/e4m3.h"
#include "formats/e8m0.h"

namespace winnow {

std::uint8_t mxfp8_scale(float max_magnitude) {
  if (max_magnitude == 0.F) return 127;
  const float finite = std::min(max_magnitude, std::numeric_limits<float>::max());
  // With max = f * 2^E, f in [1, 2): 448 = 1.75 * 2^8, so the exponent is E - 8, or E - 7 when
  // f > 1.75. Adding 0.25 - ulp in the mantissa carries into the exponent exactly then.
  const auto biased =
      static_cast<int>((std::bit_cast<std::uint32_t>(finite) + 0x1FFFFFU) >> 23) - 8;
  return static_cast<std::uint8_t>(std::max(biased, 0));
}

void quantize_mxfp8(std::span<const float, kMxfp8Group> x,
                    std::span<std::uint8_t, kMxfp8Group> elements, std::uint8_t& scale) {
  float max_magnitude = 0.F;
  bool has_nan = false;
  for (const float value : x) {
    has_nan = has_nan || std::isnan(value);
    max_magnitude = std::max(max_magnitude, std::fabs(value));
  }
  if (has_nan) {
    std::fill(elements.begin(), elements.end(), std::uint8_t{0});
    scale = kE8m0NaN;
    return;
  }
  scale = mxfp8_scale(max_magnitude);
  // scale is at most 247, so the inverse is a normal power of two and the product is exact
  // wherever E4M3 can see it.
  const float inverse = std::bit_cast<float>(static_cast<std::uint32_t>(254 - scale) << 23);
  for (std::size_t i = 0; i < kMxfp8Group; ++i) elements[i] = encode_e4m3(x[i] * inverse);
}

void dequantize_mxfp8(std::span<const std::uint8_t, kMxfp8Group> elements, std::uint8_t scale,
                      std::span<float, kMxfp8Group> out) {
  const float factor = decode_e8m0(scale);
  for (std::size_t i = 0; i < kMxfp8Group; ++i) out[i] = decode_e4m3(elements[i]) * factor;
}

}  // namespace winnow
