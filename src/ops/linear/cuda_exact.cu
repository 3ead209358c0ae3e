// linear() in the order that linear.h writes down, so that every bit equals the scalar reference.
// Two kernels with the same order: a block either owns 64 outputs of 64 inputs and each thread
// walks all columns of its own, or, for a handful of inputs, 16 outputs whose columns are shared
// out over warps, group sums meeting in shared memory where they are joined in order.
#include "ops/linear/cuda_exact.h"

#include <algorithm>

#include "ops/cuda/check.h"
#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/linear/cuda_chunk.cuh"
#include "ops/linear/cuda_exact_split.cuh"
#include "ops/linear/linear.h"
#include "ops/moe/cuda_experts.h"
#include "ops/op_context.h"

namespace winnow::cuda::exact {
namespace {

constexpr int kThreads = kSplitThreads;
constexpr int kTileOutputs = 64;
constexpr int kTilesOfBlock = kTileOutputs / static_cast<int>(kTileRows);
constexpr int kCols = static_cast<int>(kChunkCols);
/// Of a shared row of 64 floats: keeps float4 aligned and spreads the banks.
constexpr int kPitch = 68;
constexpr std::int32_t kMostFewRows = 8;  // above, outputs are split
constexpr int kMaxParts = 8;

struct TiledShared {
  float w[kCols][kPitch];
  float x[kCols][kPitch];
  float scales[4][kTileOutputs];
  const float* inputs[kTileTokens];
};

/// Outputs [64 · tile, …) of a part for up to 64 inputs: thread (i, j) owns 4 × 4 of them.
template <QuantScheme kScheme>
__device__ void multiply_tiled(const MatrixPart& part, std::int64_t tile, std::int64_t cols,
                               const Rows& rows, std::int64_t y_column, TiledShared& shared) {
  constexpr int kGroup = kScheme == QuantScheme::kNvfp4 ? 16 : 32;
  constexpr bool kHasScales = kScheme == QuantScheme::kNvfp4 || kScheme == QuantScheme::kMxfp8;
  const int thread = static_cast<int>(threadIdx.x);
  const int first_output = thread % 16 * 4;
  const int first_token = thread / 16 * 4;
  const int unit_row = thread % kTileOutputs;
  const int unit_step = thread / kTileOutputs;
  const std::int64_t unit_tile = tile * kTilesOfBlock + unit_row / kTileRows;
  if (thread < kTileTokens) {
    shared.inputs[thread] = thread < rows.count ? rows.input(thread) : nullptr;
  }
  float total[4][4] = {};
  for (std::int64_t chunk = 0; chunk < part.num_chunks; ++chunk) {
    __syncthreads();
    float values[16] = {};
    float scale = 0.0F;
    if (unit_tile < part.num_tiles) {
      const std::byte* const data =
          part.data + (unit_tile * part.num_chunks + chunk) * chunk_bytes(kScheme);
      decode_step<kScheme>(data, unit_row % static_cast<int>(kTileRows), unit_step, values);
      scale = decode_scale<kScheme>(data, unit_row % static_cast<int>(kTileRows), unit_step);
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) shared.w[unit_step * 16 + i][unit_row] = values[i];
    shared.scales[unit_step][unit_row] = scale;
    const std::int64_t col = chunk * kChunkCols;
    const int num_cols = static_cast<int>(cols - col < kChunkCols ? cols - col : kChunkCols);
#pragma unroll 4
    for (int i = thread; i < kTileTokens * kCols; i += kThreads) {
      const int t = i / kCols;
      const int k = i % kCols;
      const float* const input = shared.inputs[t];
      shared.x[k][t] = input != nullptr && k < num_cols ? input[col + k] : 0.0F;
    }
    __syncthreads();
    for (int begin = 0; begin < num_cols; begin += kGroup) {
      float partial[4][4] = {};
      const auto add = [&](int k) {
        const float4 w = *reinterpret_cast<const float4*>(&shared.w[k][first_output]);
        const float4 x = *reinterpret_cast<const float4*>(&shared.x[k][first_token]);
        const float ws[4] = {w.x, w.y, w.z, w.w};
        const float xs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int t = 0; t < 4; ++t) {
#pragma unroll
          for (int n = 0; n < 4; ++n) partial[t][n] = fmaf(xs[t], ws[n], partial[t][n]);
        }
      };
      if (begin + kGroup <= num_cols) {
#pragma unroll
        for (int k = 0; k < kGroup; ++k) add(begin + k);
      } else {
        for (int k = begin; k < num_cols; ++k) add(k);
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float group_scale = shared.scales[begin / 16][first_output + n];
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          total[t][n] = kHasScales ? fmaf(group_scale, partial[t][n], total[t][n])
                                   : total[t][n] + partial[t][n];
        }
      }
    }
  }
  for (int t = 0; t < 4 && first_token + t < rows.count; ++t) {
    for (int n = 0; n < 4; ++n) {
      const std::int64_t row = tile * kTileOutputs + first_output + n;
      if (row >= part.rows) break;
      rows.store(first_token + t, y_column + row, total[t][n] * part.matrix_scale);
    }
  }
}

__device__ void multiply_tiled_any(const MatrixPart& part, std::int64_t tile, std::int64_t cols,
                                   const Rows& rows, std::int64_t y_column) {
  __shared__ TiledShared shared;
  switch (part.scheme) {
    case QuantScheme::kF32:
      return multiply_tiled<QuantScheme::kF32>(part, tile, cols, rows, y_column, shared);
    case QuantScheme::kBF16:
      return multiply_tiled<QuantScheme::kBF16>(part, tile, cols, rows, y_column, shared);
    case QuantScheme::kMxfp8:
      return multiply_tiled<QuantScheme::kMxfp8>(part, tile, cols, rows, y_column, shared);
    case QuantScheme::kNvfp4:
      return multiply_tiled<QuantScheme::kNvfp4>(part, tile, cols, rows, y_column, shared);
  }
}

/// Some parts of a matrix; block x works on tile x - first_tile of its part.
struct Parts {
  MatrixPart part[kMaxParts];
  std::int32_t first_tile[kMaxParts + 1] = {};
  std::int32_t count = 0;
};

__device__ int part_of(const Parts& parts, int tile) {
  int i = 0;
  while (i + 1 < parts.count && tile >= parts.first_tile[i + 1]) ++i;
  return i;
}

__device__ Rows block_rows(Rows rows, int rows_of_block) {
  const std::int64_t first = std::int64_t{blockIdx.y} * rows_of_block;
  rows.first += first;
  rows.count = static_cast<std::int32_t>(rows.count - first < rows_of_block ? rows.count - first
                                                                            : rows_of_block);
  return rows;
}

template <int kTokens>
__global__ void exact_linear_split(Parts parts, std::int64_t cols, Rows rows) {
  const int tile = static_cast<int>(blockIdx.x);
  const int i = part_of(parts, tile);
  multiply_split_any<kTokens>(parts.part[i], tile - parts.first_tile[i], cols,
                              block_rows(rows, kTokens), parts.part[i].first_row);
}

__global__ void __launch_bounds__(kThreads)
    exact_linear_tiled(Parts parts, std::int64_t cols, Rows rows) {
  const int tile = static_cast<int>(blockIdx.x);
  const int i = part_of(parts, tile);
  multiply_tiled_any(parts.part[i], tile - parts.first_tile[i], cols, block_rows(rows, kTileTokens),
                     parts.part[i].first_row);
}

/// The part, its tile and where its outputs begin, for block x of a grouped product.
struct GroupedTile {
  const MatrixPart* part = nullptr;
  std::int64_t tile = 0;
  std::int64_t y_column = 0;
};

__device__ GroupedTile grouped_tile(const GroupedLinear& work, const DeviceMlp& mlp,
                                    std::int64_t tile_outputs) {
  const std::int64_t tile = blockIdx.x;
  if (work.is_down) return {&mlp.down, tile, 0};
  const std::int64_t width = work.rows / 2;
  const std::int64_t tiles = (width + tile_outputs - 1) / tile_outputs;
  return tile < tiles ? GroupedTile{&mlp.gate, tile, 0} : GroupedTile{&mlp.up, tile - tiles, width};
}

__device__ Rows grouped_rows(const GroupedLinear& work, const ExpertRows& item) {
  return {.x = work.x,
          .x_stride = work.x_stride,
          .x_rows = work.x_rows,
          .y = work.y,
          .y_stride = work.y_stride,
          .first = item.first,
          .count = item.count};
}

__global__ void exact_grouped_split(GroupedLinear work) {
  const ExpertRows item = work.items[blockIdx.y];
  if (item.count == 0) return;
  const GroupedTile at = grouped_tile(work, work.experts[item.expert], kTileRows);
  multiply_split_any<kFewRows>(*at.part, at.tile, work.cols, grouped_rows(work, item), at.y_column);
}

__global__ void __launch_bounds__(kThreads) exact_grouped_tiled(GroupedLinear work) {
  const ExpertRows item = work.items[blockIdx.y];
  if (item.count == 0) return;
  const GroupedTile at = grouped_tile(work, work.experts[item.expert], kTileOutputs);
  multiply_tiled_any(*at.part, at.tile, work.cols, grouped_rows(work, item), at.y_column);
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

void multiply(CUstream_st* stream, std::span<const MatrixPart> list, std::int64_t cols, Rows rows) {
  const bool is_split = rows.count <= kMostFewRows;
  Parts parts;
  for (const MatrixPart& part : list) {
    const std::int64_t tiles = is_split ? part.num_tiles : ceil_div(part.num_tiles, kTilesOfBlock);
    parts.part[parts.count] = part;
    parts.first_tile[parts.count + 1] =
        parts.first_tile[parts.count] + static_cast<std::int32_t>(tiles);
    ++parts.count;
  }
  const auto num_tiles = static_cast<unsigned>(parts.first_tile[parts.count]);
  const auto blocks = [&](std::int64_t rows_of_block) {
    return dim3(num_tiles, static_cast<unsigned>(ceil_div(rows.count, rows_of_block)));
  };
  if (rows.count == 1) {
    exact_linear_split<1><<<blocks(1), kThreads, 0, stream>>>(parts, cols, rows);
  } else if (is_split) {
    exact_linear_split<kFewRows><<<blocks(kFewRows), kThreads, 0, stream>>>(parts, cols, rows);
  } else {
    exact_linear_tiled<<<blocks(kTileTokens), kThreads, 0, stream>>>(parts, cols, rows);
  }
  check_launch("linear");
}

}  // namespace

void linear(const ops::OpContext& context, const ops::LinearParams& params) {
  if (params.num_rows == 0) return;
  std::span<const MatrixPart> parts = static_cast<const CudaMatrix*>(params.w)->parts();
  const Rows rows{.x = params.x,
                  .x_stride = params.x_stride,
                  .x_rows = nullptr,
                  .y = params.y,
                  .y_stride = params.y_stride,
                  .first = 0,
                  .count = static_cast<std::int32_t>(params.num_rows),
                  .accumulate = params.accumulate};
  while (!parts.empty()) {
    const std::size_t count = std::min<std::size_t>(parts.size(), kMaxParts);
    multiply(context.cuda->stream(), parts.first(count), params.w->cols(), rows);
    parts = parts.subspan(count);
  }
}

void grouped_linear(CUstream_st* stream, const GroupedLinear& work) {
  if (work.num_items == 0) return;
  const bool is_split = work.item_rows == kFewRows;
  const std::int64_t outputs = is_split ? kTileRows : kTileOutputs;
  const std::int64_t tiles =
      work.is_down ? ceil_div(work.rows, outputs) : 2 * ceil_div(work.rows / 2, outputs);
  const dim3 blocks(static_cast<unsigned>(tiles), static_cast<unsigned>(work.num_items));
  if (is_split) {
    exact_grouped_split<<<blocks, kThreads, 0, stream>>>(work);
  } else {
    exact_grouped_tiled<<<blocks, kThreads, 0, stream>>>(work);
  }
  check_launch("linear of experts");
}

}  // namespace winnow::cuda::exact
