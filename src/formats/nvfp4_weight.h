// NVFP4 as expert weights store it: E2M1 codes, one E4M3 scale per 16 values along the input
// dimension, and one F32 factor per matrix. Source: spec/model.md 2 and 4.5.
// Unlike the cache form (formats/nvfp4_cache.h) a weight has a tensor-level factor, its scales may
// be 0, and the factor is a divisor or a multiplier by the *name* of its tensor:
//   X.weight_global_scale (pack-quantized)  w = code * scale / G     G = 2688 / max|W|
//   X.weight_scale_2      (ModelOpt)        w = code * scale * g     g = max|W| / 2688
// The functions here take the multiplier; multiplier_of_global_scale() inverts G once.
#pragma once

#include <cstdint>
#include <span>

namespace winnow {

inline constexpr int kNvfp4WeightGroup = 16;

/// G for a matrix whose largest magnitude is `max_magnitude`: 6 * 448 / max, so that the largest
/// block scale is 448. Kept finite and normal: 1 for an all-zero matrix, and magnitudes below
/// 2^-100 count as 2^-100.
float nvfp4_weight_global_scale(float max_magnitude);

/// 1 / G, the multiplier that dequantisation uses.
float multiplier_of_global_scale(float global_scale);

/// One group: scale = e4m3(max|x * G| / 6), saturated at 448; codes by comparing |x * G| with
/// t * scale, ties to even, never -0. A group whose scale rounds to 0 stores zero codes. A group
/// that holds a NaN stores scale 0x7F and zero codes. codes: 8 bytes, low nibble first.
void quantize_nvfp4_weight(std::span<const float, kNvfp4WeightGroup> x, float global_scale,
                           std::span<std::uint8_t, kNvfp4WeightGroup / 2> codes,
                           std::uint8_t& scale);

/// out[i] = (code * scale) * multiplier: the first product is exact, the second rounds once.
void dequantize_nvfp4_weight(std::span<const std::uint8_t, kNvfp4WeightGroup / 2> codes,
                             std::uint8_t scale, float multiplier,
                             std::span<float, kNvfp4WeightGroup> out);

}  // namespace winnow
