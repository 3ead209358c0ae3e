// The block of linear()'s exact order for a handful of inputs: 16 outputs whose columns are shared
// out over warps, group sums meeting in shared memory where they are joined in order.
#pragma once

#include <cstdint>

#include "ops/linear/cuda_chunk.cuh"
#include "ops/linear/cuda_matrix.h"

namespace winnow::cuda::exact {

inline constexpr int kSplitThreads = 256;  // of a block
inline constexpr int kSplitWarps = kSplitThreads / 32;
inline constexpr int kSplitCols = static_cast<int>(kChunkCols);

/// Inputs and outputs of a block.
struct Rows {
  const float* x = nullptr;
  std::int64_t x_stride = 0;
  const std::int32_t* x_rows = nullptr;
  float* y = nullptr;
  std::int64_t y_stride = 0;
  std::int64_t first = 0;
  std::int32_t count = 0;
  bool accumulate = false;

  __device__ const float* input(int t) const {
    const std::int64_t row = first + t;
    return x + (x_rows != nullptr ? x_rows[row] : row) * x_stride;
  }
  __device__ void store(int t, std::int64_t column, float value) const {
    float* const out = y + (first + t) * y_stride + column;
    *out = accumulate ? *out + value : value;
  }
};

template <int kTokens>
struct SplitShared {
  float x[kSplitWarps][kTokens][kSplitCols];
  float sums[2][kSplitWarps][4][kTokens][kTileRows];
  float scales[2][kSplitWarps][4][kTileRows];
};

/// Outputs [16 · tile, …) of a part for up to kTokens inputs. Each round every warp takes a chunk;
/// a lane has one output and half of the chunk's columns.
template <QuantScheme kScheme, int kTokens>
__device__ void multiply_split(const MatrixPart& part, std::int64_t tile, std::int64_t cols,
                               const Rows& rows, std::int64_t y_column,
                               SplitShared<kTokens>& shared) {
  constexpr int kGroup = kScheme == QuantScheme::kNvfp4 ? 16 : 32;
  constexpr int kGroups = kSplitCols / kGroup;
  constexpr bool kHasScales = kScheme == QuantScheme::kNvfp4 || kScheme == QuantScheme::kMxfp8;
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int output = lane % 16;
  const int half = lane / 16;
  const bool joins = threadIdx.x < kTokens * kTileRows;
  const int join_output = static_cast<int>(threadIdx.x % kTileRows);
  const int join_token = static_cast<int>(threadIdx.x / kTileRows);
  float total = 0.0F;
  int buffer = 0;
  for (std::int64_t first = 0; first < part.num_chunks; first += kSplitWarps, buffer ^= 1) {
    const std::int64_t chunk = first + warp;
    const std::int64_t col = chunk * kChunkCols;
    if (chunk < part.num_chunks) {
      const std::byte* const data =
          part.data + (tile * part.num_chunks + chunk) * chunk_bytes(kScheme);
      for (int i = lane; i < kTokens * kSplitCols; i += 32) {
        const int t = i / kSplitCols;
        const int k = i % kSplitCols;
        shared.x[warp][t][k] = t < rows.count && col + k < cols ? rows.input(t)[col + k] : 0.0F;
      }
      __syncwarp();
      float partial[kTokens] = {};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int step = half * 2 + j;
        const int num_cols =
            static_cast<int>(cols - col - step * 16 < 16 ? cols - col - step * 16 : 16);
        float values[16];
        decode_step<kScheme>(data, output, step, values);
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          const float* const x = &shared.x[warp][t][step * 16];
#pragma unroll
          for (int k = 0; k < 16; ++k) {
            if (k < num_cols) partial[t] = fmaf(x[k], values[k], partial[t]);
          }
        }
        if ((j + 1) * 16 % kGroup != 0) continue;
        const int group = (half * 32 + j * 16) / kGroup;
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          shared.sums[buffer][warp][group][t][output] = partial[t];
          partial[t] = 0.0F;
        }
        if (kHasScales) {
          shared.scales[buffer][warp][group][output] = decode_scale<kScheme>(data, output, step);
        }
      }
    }
    __syncthreads();
    if (!joins) continue;
    for (int w = 0; w < kSplitWarps && first + w < part.num_chunks; ++w) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        if ((first + w) * kChunkCols + group * kGroup >= cols) break;
        const float sum = shared.sums[buffer][w][group][join_token][join_output];
        total = kHasScales ? fmaf(shared.scales[buffer][w][group][join_output], sum, total)
                           : total + sum;
      }
    }
  }
  const std::int64_t row = tile * kTileRows + join_output;
  if (joins && join_token < rows.count && row < part.rows) {
    rows.store(join_token, y_column + row, total * part.matrix_scale);
  }
}

template <int kTokens>
__device__ void multiply_split_any(const MatrixPart& part, std::int64_t tile, std::int64_t cols,
                                   const Rows& rows, std::int64_t y_column) {
  __shared__ SplitShared<kTokens> shared;
  switch (part.scheme) {
    case QuantScheme::kF32:
      return multiply_split<QuantScheme::kF32>(part, tile, cols, rows, y_column, shared);
    case QuantScheme::kBF16:
      return multiply_split<QuantScheme::kBF16>(part, tile, cols, rows, y_column, shared);
    case QuantScheme::kMxfp8:
      return multiply_split<QuantScheme::kMxfp8>(part, tile, cols, rows, y_column, shared);
    case QuantScheme::kNvfp4:
      return multiply_split<QuantScheme::kNvfp4>(part, tile, cols, rows, y_column, shared);
  }
}

}  // namespace winnow::cuda::exact
