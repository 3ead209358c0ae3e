#include "formats/nvfp4_weight.h"

#include <algorithm>
#include <cmath>

#include "formats/e2m1.h"
#include "formats/e4m3.h"

namespace winnow {

float nvfp4_weight_global_scale(float max_magnitude) {
  if (max_magnitude == 0.F) return 1.F;
  return 2688.F / std::max(max_magnitude, 0x1p-100F);
}

float multiplier_of_global_scale(float global_scale) { return 1.F / global_scale; }

void quantize_nvfp4_weight(std::span<const float, kNvfp4WeightGroup> x, float global_scale,
                           std::span<std::uint8_t, kNvfp4WeightGroup / 2> codes,
                           std::uint8_t& scale) {
  float max_magnitude = 0.F;
  bool has_nan = false;
  for (const float value : x) {
    const float magnitude = std::fabs(value * global_scale);
    has_nan = has_nan || std::isnan(magnitude);
    max_magnitude = std::max(max_magnitude, magnitude);
  }
  std::fill(codes.begin(), codes.end(), std::uint8_t{0});
  scale = has_nan ? kE4m3NaN : encode_e4m3(max_magnitude / 6.F);
  if (has_nan || scale == 0) return;
  const float stored = decode_e4m3(scale);
  for (std::size_t i = 0; i < kNvfp4WeightGroup; ++i) {
    const float scaled = x[i] * global_scale;
    const std::uint8_t magnitude = e2m1_magnitude(std::fabs(scaled), stored);
    const unsigned sign = scaled < 0.F && magnitude != 0 ? 8U : 0U;
    codes[i / 2] = static_cast<std::uint8_t>(codes[i / 2] | ((magnitude | sign) << (4 * (i % 2))));
  }
}

void dequantize_nvfp4_weight(std::span<const std::uint8_t, kNvfp4WeightGroup / 2> codes,
                             std::uint8_t scale, float multiplier,
                             std::span<float, kNvfp4WeightGroup> out) {
  const float factor = decode_e4m3(scale);
  for (std::size_t i = 0; i < kNvfp4WeightGroup; ++i) {
    const auto nibble = static_cast<std::uint8_t>(codes[i / 2] >> (4 * (i % 2)));
    out[i] = decode_e2m1(nibble) * factor * multiplier;
  }
}

}  // namespace winnow
