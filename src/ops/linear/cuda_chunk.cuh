// Reading a chunk of cuda_matrix.h row by row, for kernels that walk columns in ascending order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "formats/bf16.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "ops/cuda/codecs.cuh"
#include "ops/linear/cuda_matrix.h"

namespace winnow::cuda {

/// Columns 16 · step … + 15 of row `row` of a chunk, elements without their scales.
template <QuantScheme kScheme>
__device__ inline void decode_step(const std::byte* chunk, int row, int step, float (&out)[16]) {
  const int g = row % 8;
  const int upper = row / 8;  // rows g and g + 8 share their lanes' values
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const int lane = 4 * g + c;
    if constexpr (kScheme == QuantScheme::kNvfp4) {
      const std::uint32_t word = reinterpret_cast<const std::uint32_t*>(chunk)[lane * 4 + step];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        out[2 * c + i] = e2m1_value(upper == 0 ? nvfp4_code(word, i) : nvfp4_code(word, i + 2));
        out[2 * c + 8 + i] =
            e2m1_value(upper == 0 ? nvfp4_code(word, i + 4) : nvfp4_code(word, i + 6));
      }
    } else if constexpr (kScheme == QuantScheme::kMxfp8) {
      const auto* const at =
          reinterpret_cast<const std::uint8_t*>(chunk) + step / 2 * 512 + lane * 16 + step % 2 * 8;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        out[2 * c + i] = decode_e4m3(at[upper == 0 ? mxfp8_byte(i) : mxfp8_byte(i + 2)]);
        out[2 * c + 8 + i] = decode_e4m3(at[upper == 0 ? mxfp8_byte(i + 4) : mxfp8_byte(i + 6)]);
      }
    } else if constexpr (kScheme == QuantScheme::kBF16) {
      const auto* const at = reinterpret_cast<const std::uint32_t*>(chunk) + (step * 32 + lane) * 4;
      const std::uint32_t low = at[upper];
      const std::uint32_t high = at[upper + 2];
      out[2 * c] = decode_bf16(static_cast<Bf16>(low));
      out[2 * c + 1] = decode_bf16(static_cast<Bf16>(low >> 16));
      out[2 * c + 8] = decode_bf16(static_cast<Bf16>(high));
      out[2 * c + 9] = decode_bf16(static_cast<Bf16>(high >> 16));
    } else {
      const auto* const at = reinterpret_cast<const float2*>(chunk) + (step * 32 + lane) * 4;
      const float2 low = at[upper];
      const float2 high = at[upper + 2];
      out[2 * c] = low.x;
      out[2 * c + 1] = low.y;
      out[2 * c + 8] = high.x;
      out[2 * c + 9] = high.y;
    }
  }
}

/// The scale of those columns; 1 where the scheme has none.
template <QuantScheme kScheme>
__device__ inline float decode_scale(const std::byte* chunk, int row, int step) {
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(chunk);
  if constexpr (kScheme == QuantScheme::kNvfp4) {
    return nvfp4_scale_value(bytes[512 + row % 8 * 8 + row / 8 * 4 + step]);
  } else if constexpr (kScheme == QuantScheme::kMxfp8) {
    return decode_e8m0(bytes[1024 + row % 8 * 4 + row / 8 * 2 + step / 2]);
  } else {
    return 1.0F;
  }
}

}  // namespace winnow::cuda
