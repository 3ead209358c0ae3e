// Random packed weights and inputs, and sums in double precision to hold the fast linear kernels
// against: weights are read one by one, by the words of cuda_matrix.h.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/linear/cuda_matrix.h"

namespace winnow::cuda::bench {

__device__ inline std::uint32_t hash(std::uint64_t i) {
  i = (i ^ (i >> 31)) * 0x9E3779B97F4A7C15ULL;
  i = (i ^ (i >> 27)) * 0xD6E8FEB86659FD93ULL;
  return static_cast<std::uint32_t>(i >> 32);
}

/// Random chunks; scales stay in the range that checkpoints have.
__global__ void fill_weights(std::uint8_t* w, std::int64_t num_bytes, int scheme, int chunk,
                             std::uint64_t seed) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < num_bytes;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    const int at = static_cast<int>(i % chunk);
    std::uint32_t h = hash(static_cast<std::uint64_t>(i) + seed);
    if (scheme == static_cast<int>(QuantScheme::kMxfp8)) {
      h &= 0xFFU;
      if ((h & 0x7FU) == 0x7FU) h ^= 0x40U;
      if (at >= 1024) h = 113 + h % 9;
    } else if (scheme == static_cast<int>(QuantScheme::kNvfp4)) {
      if (at >= 512) h = 8 + h % 143;
    } else {  // BF16: exponents 2^-8 … 2^-1
      const std::uint32_t pair = hash(static_cast<std::uint64_t>(i / 2) + seed);
      const std::uint32_t bits = (pair & 0x807FU) | ((119U + (pair >> 16) % 8U) << 7);
      h = i % 2 == 0 ? bits : bits >> 8;
    }
    w[i] = static_cast<std::uint8_t>(h);
  }
}

__global__ void fill_inputs(float* x, std::int64_t count, int cols) {
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    float sum = -2.0F;
    for (std::uint64_t j = 0; j < 4; ++j) {
      sum +=
          static_cast<float>(hash(static_cast<std::uint64_t>(i) * 4 + j + (1ULL << 40))) * 0x1p-32F;
    }
    x[i] = sum * (0.5F + static_cast<float>(i / cols % 7));
  }
}

__device__ inline float e4m3(std::uint32_t code) {
  const int exponent = static_cast<int>(code >> 3 & 15U);
  const float mantissa = static_cast<float>(code & 7U);
  const float magnitude =
      exponent == 0 ? mantissa * 0x1p-9F : ldexpf(1.0F + mantissa / 8.0F, exponent - 7);
  return (code & 0x80U) != 0 ? -magnitude : magnitude;
}

/// W[row][col] by the words of cuda_matrix.h.
__device__ inline float weight(const std::uint8_t* w, int scheme, int num_chunks, int row,
                               int col) {
  const int r = row % 16;
  const int g = r % 8;
  const int k = col % 64;
  const int step = k / 16;
  const int j = k % 16;
  const int lane = g * 4 + j % 8 / 2;
  const int value = j / 8 * 4 + r / 8 * 2 + j % 2;
  const std::int64_t index = std::int64_t{row / 16} * num_chunks + col / 64;
  if (scheme == static_cast<int>(QuantScheme::kMxfp8)) {
    const std::uint8_t* const chunk = w + index * 1056;
    const float element =
        e4m3(chunk[step / 2 * 512 + lane * 16 + step % 2 * 8 + mxfp8_byte(value)]);
    return ldexpf(element, static_cast<int>(chunk[1024 + g * 4 + r / 8 * 2 + step / 2]) - 127);
  }
  if (scheme == static_cast<int>(QuantScheme::kNvfp4)) {
    const std::uint8_t* const chunk = w + index * 576;
    const std::uint32_t word =
        *reinterpret_cast<const std::uint32_t*>(chunk + lane * 16 + step * 4);
    const std::uint32_t code = nvfp4_code(word, value);
    const float magnitudes[8] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
    const float magnitude = magnitudes[code & 7U];
    return ((code & 8U) != 0 ? -magnitude : magnitude) *
           nvfp4_scale_value(chunk[512 + g * 8 + r / 8 * 4 + step]);
  }
  const std::uint8_t* const at = w + index * 2048 + step * 512 + lane * 16 + value * 2;
  return __uint_as_float(static_cast<std::uint32_t>(at[0]) << 16 | static_cast<std::uint32_t>(at[1])
                                                                       << 24);
}

__device__ inline float round_bf16(float x) {
  const std::uint32_t bits = __float_as_uint(x);
  return __uint_as_float((bits + 0x7FFFU + (bits >> 16 & 1U)) & 0xFFFF0000U);
}

struct Errors {
  double squares;            // Σ (y - reference)²
  double reference;          // Σ reference²
  unsigned long long worst;  // bits of max |y - reference| / Σ_k |x · w|, as a double
  unsigned long long wrong_bits;
  unsigned long long num_wrong;  // outputs far off
  int wrong[8][2];               // token and row of the first of them
  float values[8][2];            // and what they are and should be
};

/// One warp an output; token t of the check is token t * stride of y.
__global__ void check_outputs(const std::uint8_t* w, int scheme, int num_chunks, float scale,
                              const float* x, const float* y, int rows, int row_step, int tokens,
                              int stride, Errors* errors) {
  const int cols = num_chunks * 64;
  const std::int64_t warp = (blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int num_rows = (rows + row_step - 1) / row_step;
  if (warp >= std::int64_t{num_rows} * tokens) return;
  const int row = static_cast<int>(warp % num_rows) * row_step;
  const std::int64_t token = warp / num_rows * stride;
  double sum = 0.0;
  double magnitude = 0.0;
  for (int k = lane; k < cols; k += 32) {
    const double product = static_cast<double>(round_bf16(x[token * cols + k])) *
                           static_cast<double>(weight(w, scheme, num_chunks, row, k)) *
                           static_cast<double>(scale);
    sum += product;
    magnitude += fabs(product);
  }
  for (int i = 16; i > 0; i /= 2) {
    sum += __shfl_xor_sync(~0U, sum, i);
    magnitude += __shfl_xor_sync(~0U, magnitude, i);
  }
  if (lane != 0) return;
  const double value = static_cast<double>(y[token * rows + row]);
  const double error = value == value ? fabs(value - sum) : 1e300;
  if (error > 1e-5 * magnitude) {
    const unsigned long long at = atomicAdd(&errors->num_wrong, 1ULL);
    if (at < 8) {
      errors->wrong[at][0] = static_cast<int>(token);
      errors->wrong[at][1] = row;
      errors->values[at][0] = static_cast<float>(value);
      errors->values[at][1] = static_cast<float>(sum);
    }
  }
  atomicAdd(&errors->squares, error * error);
  atomicAdd(&errors->reference, sum * sum);
  atomicMax(&errors->worst,
            static_cast<unsigned long long>(__double_as_longlong(error / (magnitude + 1e-300))));
}

__global__ void compare_bits(const std::uint32_t* a, const std::uint32_t* b, std::int64_t count,
                             Errors* errors) {
  unsigned long long wrong = 0;
  for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < count;
       i += std::int64_t{gridDim.x} * blockDim.x) {
    wrong += a[i] != b[i] ? 1 : 0;
  }
  if (wrong != 0) atomicAdd(&errors->wrong_bits, wrong);
}

}  // namespace winnow::cuda::bench
