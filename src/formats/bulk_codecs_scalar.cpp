// The definition that the vector sets are compared with: formats/*.h in plain loops.
#include <algorithm>
#include <cmath>

#include "formats/bf16.h"
#include "formats/bulk_codecs.h"
#include "formats/e4m3.h"
#include "formats/mxfp8.h"
#include "formats/nvfp4_cache.h"
#include "formats/nvfp4_weight.h"

namespace winnow {

namespace {

void encode_bf16_row(const float* x, std::uint16_t* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = encode_bf16(x[i]);
}

void decode_bf16_row(const std::uint16_t* x, float* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = decode_bf16(x[i]);
}

void encode_e4m3_row(const float* x, std::uint8_t* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = encode_e4m3(x[i]);
}

void decode_e4m3_row(const std::uint8_t* x, float* out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = kE4m3Values[x[i]];
}

void quantize_nvfp4_cache_row(const float* x, std::uint8_t* codes, std::uint8_t* scales,
                              std::int64_t n) {
  for (std::int64_t group = 0; group < n / kNvfp4Group; ++group) {
    const float* values = x + group * kNvfp4Group;
    std::uint8_t* out = codes + group * (kNvfp4Group / 2);
    std::array<float, kNvfp4Group> finite;
    bool has_nan = false;
    for (std::size_t i = 0; i < kNvfp4Group; ++i) {
      has_nan = has_nan || std::isnan(values[i]);
      finite[i] = std::clamp(values[i], -std::numeric_limits<float>::max(),
                             std::numeric_limits<float>::max());
    }
    if (has_nan) {
      std::fill_n(out, kNvfp4Group / 2, std::uint8_t{0});
      scales[group] = kE4m3NaN;
      continue;
    }
    const Nvfp4Block block = quantize_nvfp4(finite);
    std::copy(block.codes.begin(), block.codes.end(), out);
    scales[group] = block.scale;
  }
}

Nvfp4Block load_block(const std::uint8_t* codes, const std::uint8_t* scales, std::int64_t group) {
  Nvfp4Block block;
  std::copy_n(codes + group * (kNvfp4Group / 2), kNvfp4Group / 2, block.codes.begin());
  block.scale = scales[group];
  return block;
}

void dequantize_nvfp4_exact_row(const std::uint8_t* codes, const std::uint8_t* scales, float* out,
                                std::int64_t n) {
  for (std::int64_t group = 0; group < n / kNvfp4Group; ++group) {
    dequantize_exact(load_block(codes, scales, group),
                     std::span<float, kNvfp4Group>(out + group * kNvfp4Group, kNvfp4Group));
  }
}

void dequantize_nvfp4_e4m3_row(const std::uint8_t* codes, const std::uint8_t* scales,
                               std::uint8_t* out, std::int64_t n) {
  for (std::int64_t group = 0; group < n / kNvfp4Group; ++group) {
    dequantize_e4m3(load_block(codes, scales, group),
                    std::span<std::uint8_t, kNvfp4Group>(out + group * kNvfp4Group, kNvfp4Group));
  }
}

void dequantize_nvfp4_e4m3_to_float_row(const std::uint8_t* codes, const std::uint8_t* scales,
                                        float* out, std::int64_t n) {
  for (std::int64_t group = 0; group < n / kNvfp4Group; ++group) {
    std::array<std::uint8_t, kNvfp4Group> bytes;
    dequantize_e4m3(load_block(codes, scales, group), bytes);
    decode_e4m3_row(bytes.data(), out + group * kNvfp4Group, kNvfp4Group);
  }
}

void quantize_nvfp4_weight_row(const float* x, float global_scale, std::uint8_t* codes,
                               std::uint8_t* scales, std::int64_t n) {
  for (std::int64_t group = 0; group < n / kNvfp4WeightGroup; ++group) {
    quantize_nvfp4_weight(
        std::span<const float, kNvfp4WeightGroup>(x + group * kNvfp4WeightGroup, kNvfp4WeightGroup),
        global_scale,
        std::span<std::uint8_t, kNvfp4WeightGroup / 2>(codes + group * (kNvfp4WeightGroup / 2),
                                                       kNvfp4WeightGroup / 2),
        scales[group]);
  }
}

void dequantize_nvfp4_weight_row(const std::uint8_t* codes, const std::uint8_t* scales,
                                 float multiplier, float* out, std::int64_t n) {
  for (std::int64_t group = 0; group < n / kNvfp4WeightGroup; ++group) {
    dequantize_nvfp4_weight(
        std::span<const std::uint8_t, kNvfp4WeightGroup / 2>(
            codes + group * (kNvfp4WeightGroup / 2), kNvfp4WeightGroup / 2),
        scales[group], multiplier,
        std::span<float, kNvfp4WeightGroup>(out + group * kNvfp4WeightGroup, kNvfp4WeightGroup));
  }
}

void quantize_mxfp8_row(const float* x, std::uint8_t* elements, std::uint8_t* scales,
                        std::int64_t n) {
  for (std::int64_t group = 0; group < n / kMxfp8Group; ++group) {
    quantize_mxfp8(
        std::span<const float, kMxfp8Group>(x + group * kMxfp8Group, kMxfp8Group),
        std::span<std::uint8_t, kMxfp8Group>(elements + group * kMxfp8Group, kMxfp8Group),
        scales[group]);
  }
}

void dequantize_mxfp8_row(const std::uint8_t* elements, const std::uint8_t* scales, float* out,
                          std::int64_t n) {
  for (std::int64_t group = 0; group < n / kMxfp8Group; ++group) {
    dequantize_mxfp8(
        std::span<const std::uint8_t, kMxfp8Group>(elements + group * kMxfp8Group, kMxfp8Group),
        scales[group], std::span<float, kMxfp8Group>(out + group * kMxfp8Group, kMxfp8Group));
  }
}

}  // namespace

constinit const BulkCodecs kScalarCodecs = {
    .encode_bf16 = encode_bf16_row,
    .decode_bf16 = decode_bf16_row,
    .encode_e4m3 = encode_e4m3_row,
    .decode_e4m3 = decode_e4m3_row,
    .quantize_nvfp4_cache = quantize_nvfp4_cache_row,
    .dequantize_nvfp4_exact = dequantize_nvfp4_exact_row,
    .dequantize_nvfp4_e4m3 = dequantize_nvfp4_e4m3_row,
    .dequantize_nvfp4_e4m3_to_float = dequantize_nvfp4_e4m3_to_float_row,
    .quantize_nvfp4_weight = quantize_nvfp4_weight_row,
    .dequantize_nvfp4_weight = dequantize_nvfp4_weight_row,
    .quantize_mxfp8 = quantize_mxfp8_row,
    .dequantize_mxfp8 = dequantize_mxfp8_row,
};

}  // namespace winnow
