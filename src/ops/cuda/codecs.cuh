// formats/*.h on the device, where tables at namespace scope cannot be indexed: the same values by
// arithmetic, or from a table that a block builds in shared memory.
#pragma once

#include <bit>
#include <cstdint>

#include "formats/bf16.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "formats/nvfp4_cache.h"
#include "ops/cuda/cache_planes.h"

namespace winnow::cuda {

/// decode_e2m1 without its table.
constexpr float e2m1_value(std::uint32_t code) {
  const std::uint32_t magnitude = code & 7U;
  const float value = magnitude < 2 ? static_cast<float>(magnitude) * 0.5F
                                    : std::bit_cast<float>((magnitude + 252U) << 22U);
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | (code & 8U) << 28U);
}

static_assert([] {
  for (std::uint32_t code = 0; code < 16; ++code) {
    const float expected = decode_e2m1(static_cast<std::uint8_t>(code));
    if (std::bit_cast<std::uint32_t>(expected) != std::bit_cast<std::uint32_t>(e2m1_value(code))) {
      return false;
    }
  }
  return true;
}());

/// What each (scale, magnitude) of an NVFP4 cache reads as: scale byte & 0x7F, then magnitude code.
inline constexpr int kNvfp4TableSize = 128 * 8;

/// Entry `i` of that table in `mode` (kDequantTable of formats/dequant_table.h, widened).
constexpr float nvfp4_table_value(int i, DequantMode mode) {
  const auto scale = static_cast<std::uint8_t>(i >> 3);
  const float magnitude = e2m1_value(static_cast<std::uint32_t>(i & 7));
  if (mode == DequantMode::kExact) return magnitude * decode_e4m3(scale);
  return decode_e4m3(scale == kE4m3NaN ? kE4m3NaN : encode_e4m3(decode_e4m3(scale) * magnitude));
}

/// By every thread of the block, if the plane is nvfp4; a barrier must follow.
__device__ inline void fill_nvfp4_table(float* table, DequantMode mode) {
  for (int i = static_cast<int>(threadIdx.x); i < kNvfp4TableSize;
       i += static_cast<int>(blockDim.x)) {
    table[i] = nvfp4_table_value(i, mode);
  }
}

/// Value d of a vector; `table` is read for nvfp4 only.
__device__ inline float decode_cache_value(CacheDType dtype, const std::byte* data,
                                           const std::byte* scales, int d, const float* table) {
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(data);
  switch (dtype) {
    case CacheDType::kF32:
      return reinterpret_cast<const float*>(data)[d];
    case CacheDType::kBF16:
      return decode_bf16(reinterpret_cast<const Bf16*>(data)[d]);
    case CacheDType::kFp8:
      return decode_e4m3(bytes[d]);
    case CacheDType::kNvfp4: {
      const std::uint32_t code = bytes[d / 2] >> (d % 2 * 4);
      const std::uint32_t scale = reinterpret_cast<const std::uint8_t*>(scales)[d / kNvfp4Group];
      const float value = table[(scale & 0x7FU) * 8 + (code & 7U)];
      return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ (code & 8U) << 28U);
    }
  }
  return 0.0F;
}

/// Sixteen values of a vector from a multiple of 16 on. A plane's vectors of whole groups lie on 8
/// bytes in NVFP4 and on 16 in the other dtypes (cache_row.h; pools are aligned to 256).
__device__ inline void decode_cache_group(CacheDType dtype, const std::byte* data,
                                          const std::byte* scales, int group, const float* table,
                                          float (&out)[16]) {
  switch (dtype) {
    case CacheDType::kF32:
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 x = reinterpret_cast<const float4*>(data)[group * 4 + i];
        out[4 * i] = x.x;
        out[4 * i + 1] = x.y;
        out[4 * i + 2] = x.z;
        out[4 * i + 3] = x.w;
      }
      return;
    case CacheDType::kBF16:
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4 x = reinterpret_cast<const uint4*>(data)[group * 2 + i];
        const std::uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          out[8 * i + j] = decode_bf16(static_cast<Bf16>(words[j / 2] >> (j % 2 * 16)));
        }
      }
      return;
    case CacheDType::kFp8: {
      const uint4 x = reinterpret_cast<const uint4*>(data)[group];
      const std::uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        out[j] = decode_e4m3(static_cast<std::uint8_t>(words[j / 4] >> (j % 4 * 8)));
      }
      return;
    }
    case CacheDType::kNvfp4: {
      const uint2 x = reinterpret_cast<const uint2*>(data)[group];
      const std::uint32_t scale = reinterpret_cast<const std::uint8_t*>(scales)[group];
      const float* const row = table + (scale & 0x7FU) * 8;
      const std::uint32_t words[2] = {x.x, x.y};
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        const std::uint32_t code = words[j / 8] >> (j % 8 * 4);
        out[j] =
            std::bit_cast<float>(std::bit_cast<std::uint32_t>(row[code & 7U]) ^ (code & 8U) << 28U);
      }
      return;
    }
  }
}

/// Tokens [first, first + count), at most kTokens, of one head into rows of dim + 1 floats: odd,
/// so that threads on neighbouring tokens meet no bank conflict. By kThreads threads.
template <int kTokens, int kThreads>
__device__ inline void decode_cache_tokens(const HeadPlanes& plane, int head, const std::byte* row,
                                           int first, int count, const float* table, float* out) {
  const int thread = static_cast<int>(threadIdx.x);
  const int pitch = plane.dim + 1;
  if (plane.dim % 16 == 0) {
    for (int i = thread; i < kTokens * (plane.dim / 16); i += kThreads) {
      const int t = i % kTokens;
      const int group = i / kTokens;
      if (t >= count) continue;
      float values[16];
      decode_cache_group(plane.dtype, row + plane.data(head, first + t),
                         row + plane.scales(head, first + t), group, table, values);
#pragma unroll
      for (int j = 0; j < 16; ++j) out[t * pitch + group * 16 + j] = values[j];
    }
    return;
  }
  for (int i = thread; i < count * plane.dim; i += kThreads) {
    const int t = i / plane.dim;
    const int d = i - t * plane.dim;
    out[t * pitch + d] = decode_cache_value(plane.dtype, row + plane.data(head, first + t),
                                            row + plane.scales(head, first + t), d, table);
  }
}

/// One group of an NVFP4 cache vector, as BulkCodecs::quantize_nvfp4_cache: eight code bytes in
/// `codes`; returns the scale byte.
__device__ inline std::uint8_t quantize_nvfp4_group(const float* x, std::uint8_t* codes) {
  constexpr float kLargest = 3.402823466e38F;  // infinities saturate
  float finite[kNvfp4Group];
  float max_magnitude = 0.0F;
  bool has_nan = false;
  for (int i = 0; i < kNvfp4Group; ++i) {
    has_nan = has_nan || x[i] != x[i];
    finite[i] = x[i] < -kLargest ? -kLargest : (kLargest < x[i] ? kLargest : x[i]);
    max_magnitude = fmaxf(max_magnitude, fabsf(finite[i]));
  }
  const std::uint8_t scale = has_nan ? kE4m3NaN : nvfp4_cache_scale(max_magnitude);
  const float stored = decode_e4m3(scale);
  for (int i = 0; i < kNvfp4Group; i += 2) {
    std::uint32_t byte = 0;
    for (int j = 0; j < 2; ++j) {
      const std::uint32_t magnitude = e2m1_magnitude(fabsf(finite[i + j]), stored);
      const std::uint32_t sign = finite[i + j] < 0.0F && magnitude != 0 ? 8U : 0U;
      byte |= (magnitude | sign) << (4 * j);
    }
    codes[i / 2] = has_nan ? std::uint8_t{0} : static_cast<std::uint8_t>(byte);
  }
  return scale;
}

}  // namespace winnow::cuda
