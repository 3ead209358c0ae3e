// What the decode kernels of linear share.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "formats/quant_scheme.h"
#include "ops/linear/cuda_fast.h"

namespace winnow::cuda::linear_decode {

inline constexpr int kParts = 4;
inline constexpr int kMostSharedBytes = 232448;  // of a block
inline constexpr int kTokenTile = 8;
inline constexpr int kTileChunkBytes = 1024;  // a chunk of x for 8 tokens
inline constexpr int kSumStride = 20;  // floats between tokens of a partial tile: no bank conflicts

/// Up to so many tiles for each multiprocessor are one wave of small blocks.
inline constexpr int kSmallTiles = 5;

struct DecodeParams {
  const std::byte* w;
  const std::byte* packed;
  const float* x;
  float* y;
  std::int64_t x_stride;
  std::int64_t y_stride;
  int num_tiles;
  int num_chunks;
  int parts;
  int rows;
  int num_tokens;
  float sum_scale;
  bool accumulate;
};

/// Tiles of tokens that kernels and packed x come in.
inline int token_tiles(std::int64_t num_tokens) {
  for (const int tiles : {1, 2, 4}) {
    if (num_tokens <= tiles * kTokenTile) return tiles;
  }
  return 8;
}

DecodeParams decode_params(const FastLinear& linear, const std::byte* packed);

/// The kernel of cuda_fast_decode_small.cu; false when it is not for this shape.
bool launch_small(cudaStream_t stream, QuantScheme scheme, const DecodeParams& params,
                  int num_multiprocessors);

}  // namespace winnow::cuda::linear_decode
