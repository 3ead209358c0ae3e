// NVFP4 as a KV-cache row stores it: 16 E2M1 codes sharing one E4M3 scale, no tensor-level scale.
// Source: spec/model.md 4.2, cache quantiser. Expert weights differ: see formats/nvfp4_weight.h.
// Whole vectors at SIMD speed: formats/bulk_codecs.h.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "formats/e4m3.h"

namespace winnow {

inline constexpr int kNvfp4Group = 16;  // values per scale, along head_dim

/// Nine bytes. Value 2j is the low nibble of codes[j], value 2j+1 the high nibble.
struct Nvfp4Block {
  std::array<std::uint8_t, kNvfp4Group / 2> codes;  // sign << 3 | E2M1 magnitude; never -0
  std::uint8_t scale;                               // E4M3, in [1/512, 448], never NaN
};

/// Quantises 16 finite values. scale = e4m3(clamp(max|x| / 6, 1/512, 448)); each code is the
/// nearest, ties to even, found by comparing |x| with t * scale: dividing would move ties.
/// Values beyond 6 * scale saturate. Non-finite input is the caller's bug (asserted).
Nvfp4Block quantize_nvfp4(std::span<const float, kNvfp4Group> x);

/// The scale byte alone, from max|x|: shared by every implementation of the quantiser.
constexpr std::uint8_t nvfp4_cache_scale(float max_magnitude) {
  // Not std::clamp: it takes the address of kE4m3Max, which device code has no right to.
  const float scale = max_magnitude / 6.F;
  const float raised = scale < 1.F / 512.F ? 1.F / 512.F : scale;
  return encode_e4m3(kE4m3Max < raised ? kE4m3Max : raised);
}

/// out[i] = code * scale, exact: each product also fits FP16 and BF16 without rounding. Bit 7 of
/// the scale is ignored in both modes, as hardware reads an unsigned E4M3; 0x7F gives NaN.
void dequantize_exact(const Nvfp4Block& block, std::span<float, kNvfp4Group> out);

/// The same products rounded to E4M3, saturated at 448: what an FP8 tensor core is fed.
void dequantize_e4m3(const Nvfp4Block& block, std::span<std::uint8_t, kNvfp4Group> out);

}  // namespace winnow
