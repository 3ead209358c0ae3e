#include "formats/nvfp4_cache.h"

#include <algorithm>
#include <cmath>

#include "base/assert.h"
#include "formats/dequant_table.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"

namespace winnow {

Nvfp4Block quantize_nvfp4(std::span<const float, kNvfp4Group> x) {
  float max_magnitude = 0.F;
  for (const float value : x) {
    WINNOW_ASSERT(std::isfinite(value), "cache quantiser takes finite values", value);
    max_magnitude = std::max(max_magnitude, std::fabs(value));
  }
  Nvfp4Block block{.codes = {}, .scale = nvfp4_cache_scale(max_magnitude)};
  const float scale = decode_e4m3(block.scale);
  for (std::size_t i = 0; i < kNvfp4Group; ++i) {
    const std::uint8_t magnitude = e2m1_magnitude(std::fabs(x[i]), scale);
    const unsigned sign = x[i] < 0.F && magnitude != 0 ? 8U : 0U;
    const unsigned nibble = magnitude | sign;
    block.codes[i / 2] = static_cast<std::uint8_t>(block.codes[i / 2] | (nibble << (4 * (i % 2))));
  }
  return block;
}

void dequantize_exact(const Nvfp4Block& block, std::span<float, kNvfp4Group> out) {
  const float scale = decode_e4m3(block.scale & 0x7F);
  for (std::size_t i = 0; i < kNvfp4Group; ++i) {
    out[i] = decode_e2m1(static_cast<std::uint8_t>(block.codes[i / 2] >> (4 * (i % 2)))) * scale;
  }
}

void dequantize_e4m3(const Nvfp4Block& block, std::span<std::uint8_t, kNvfp4Group> out) {
  const auto& row = kDequantTable[block.scale];
  for (std::size_t i = 0; i < kNvfp4Group; ++i) {
    const unsigned nibble = (block.codes[i / 2] >> (4 * (i % 2))) & 0xFU;
    out[i] = static_cast<std::uint8_t>(row[nibble & 7U] ^ ((nibble & 8U) << 4));
  }
}

}  // namespace winnow
