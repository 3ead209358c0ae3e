// MXFP8 as linear weights store it: E4M3 elements, one E8M0 scale per 32 values along the input
// dimension; w = e4m3 * 2^(scale - 127), also where the tensor is called weight_scale_inv.
// Source: OCP Microscaling Formats 1.0; spec/model.md 2, 4.1, 4.5.
#pragma once

#include <cstdint>
#include <span>

namespace winnow {

inline constexpr int kMxfp8Group = 32;

/// Scale byte of a group with this largest magnitude: the smallest power of two that brings it to
/// 448 or less, so that nothing saturates (a scale from floor(log2) alone would clip mantissas
/// above 1.75). An all-zero group stores 127 (1.0).
std::uint8_t mxfp8_scale(float max_magnitude);

/// One group: scale as above, element = e4m3(x / 2^(scale - 127)), ties to even; infinities
/// saturate. A group that holds a NaN stores scale 255 (NaN) and zero elements.
void quantize_mxfp8(std::span<const float, kMxfp8Group> x,
                    std::span<std::uint8_t, kMxfp8Group> elements, std::uint8_t& scale);

/// out[i] = e4m3(elements[i]) * 2^(scale - 127), exact within float's range.
void dequantize_mxfp8(std::span<const std::uint8_t, kMxfp8Group> elements, std::uint8_t scale,
                      std::span<float, kMxfp8Group> out);

}  // namespace winnow
