// Random cache pages for the benchmarks, and their values by plain arithmetic: the reference that
// shares no code with the kernels.
#pragma once

#include "ops/cuda/bench.cuh"
#include "ops/cuda/cache_planes.h"

namespace winnow::cuda::bench {

/// Bytes of a plane of `tokens` vectors of 128 values, scales included.
inline std::int64_t plane_bytes(CacheDType dtype, int tokens = 128) {
  switch (dtype) {
    case CacheDType::kBF16:
      return std::int64_t{tokens} * 256;
    case CacheDType::kFp8:
      return std::int64_t{tokens} * 128;
    default:
      return std::int64_t{tokens} * (64 + 8);
  }
}

inline HeadPlanes make_plane(CacheDType dtype, std::int64_t offset, std::int64_t head_stride) {
  const int data_stride = dtype == CacheDType::kBF16 ? 256 : dtype == CacheDType::kFp8 ? 128 : 64;
  return {.data_offset = offset,
          .scale_offset = offset + 128 * data_stride,
          .head_stride = head_stride,
          .data_stride = data_stride,
          .scale_stride = dtype == CacheDType::kNvfp4 ? 8 : 0,
          .dim = 128,
          .dtype = dtype};
}

/// Random finite contents of one plane of every row; values of about unit variance.
static __global__ void fill_plane(std::byte* pool, std::int64_t row_bytes, std::int64_t num_rows,
                                  HeadPlanes plane, int head, std::uint64_t seed) {
  const std::int64_t step = std::int64_t{gridDim.x} * blockDim.x;
  for (std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < num_rows * 128;
       i += step) {
    std::byte* const row = pool + i / 128 * row_bytes;
    const int token = static_cast<int>(i % 128);
    auto* const data = reinterpret_cast<std::uint8_t*>(row + plane.data(head, token));
    for (int b = 0; b < plane.data_stride; ++b) {
      const std::uint64_t bits = random_bits(seed, static_cast<std::uint64_t>(i) * 256 + b);
      std::uint8_t byte = static_cast<std::uint8_t>(bits);
      if (plane.dtype == CacheDType::kNvfp4) {
        if ((byte & 0x0F) == 0x08) byte &= 0xF0;
        if ((byte & 0xF0) == 0x80) byte &= 0x0F;
      } else if (plane.dtype == CacheDType::kFp8) {
        byte = static_cast<std::uint8_t>((byte & 0x80) | (0x20 + bits / 256 % 0x1C));
      } else {
        byte =
            b % 2 == 0 ? byte : static_cast<std::uint8_t>((byte & 0x80) | (0x3E + bits / 256 % 2));
      }
      data[b] = byte;
    }
    if (plane.dtype == CacheDType::kNvfp4) {
      auto* const scales = reinterpret_cast<std::uint8_t*>(row + plane.scales(head, token));
      for (int g = 0; g < 8; ++g) {
        scales[g] = static_cast<std::uint8_t>(
            0x24 + random_bits(seed + 1, static_cast<std::uint64_t>(i) * 8 + g) % 12);
      }
    }
  }
}

/// NaN from token `first` of a row on, in data and scales.
static __global__ void poison_plane(std::byte* row, HeadPlanes plane, int head, int first) {
  for (int token = first + static_cast<int>(threadIdx.x); token < 128; token += blockDim.x) {
    for (int b = 0; b < plane.data_stride; ++b) row[plane.data(head, token) + b] = std::byte{0xFF};
    for (int g = 0; g < plane.scale_stride; ++g) {
      row[plane.scales(head, token) + g] = std::byte{0x7F};
    }
  }
}

__host__ __device__ inline double e4m3_value(std::uint8_t code) {
  const int exponent = code >> 3 & 15;
  const int mantissa = code & 7;
  if ((code & 0x7F) == 0x7F) return static_cast<double>(__builtin_nanf(""));
  const double value = exponent == 0 ? ldexp(static_cast<double>(mantissa), -9)
                                     : ldexp(8.0 + mantissa, exponent - 10);
  return (code & 0x80) != 0 ? -value : value;
}

/// Nearest E4M3 value, ties to even, saturating.
__host__ __device__ inline double round_e4m3(double x) {
  const double magnitude = fabs(x);
  if (!(magnitude == magnitude)) return x;
  if (magnitude >= 448.0) return x < 0 ? -448.0 : 448.0;
  int exponent = 0;
  frexp(magnitude, &exponent);
  const double unit = ldexp(1.0, (exponent - 1 < -6 ? -6 : exponent - 1) - 3);
  const double rounded = rint(magnitude / unit) * unit;
  return x < 0 ? -rounded : rounded;
}

/// Value `dim` of token `token`.
__host__ __device__ inline double plane_value(const std::byte* row, const HeadPlanes& plane,
                                              DequantMode mode, int head, int token, int dim) {
  const auto* const data = reinterpret_cast<const std::uint8_t*>(row + plane.data(head, token));
  if (plane.dtype == CacheDType::kFp8) return e4m3_value(data[dim]);
  if (plane.dtype == CacheDType::kBF16) {
    const std::uint32_t bits = static_cast<std::uint32_t>(data[2 * dim + 1]) << 24 |
                               static_cast<std::uint32_t>(data[2 * dim]) << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
  }
  const int code = data[dim / 2] >> (dim % 2 * 4) & 15;
  const int magnitude = code & 7;
  // 0 .5 1 1.5 2 3 4 6
  const double table = magnitude < 5 ? magnitude / 2.0 : magnitude == 7 ? 6.0 : magnitude - 2.0;
  const auto* const scales = reinterpret_cast<const std::uint8_t*>(row + plane.scales(head, token));
  const double value = table * e4m3_value(scales[dim / 16] & 0x7F);
  const double rounded = mode == DequantMode::kE4M3 ? round_e4m3(value) : value;
  return (code & 8) != 0 ? -rounded : rounded;
}

}  // namespace winnow::cuda::bench
