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

/// Bytes of x for a block that keeps all of it: only the tokens there are.
__host__ __device__ constexpr int resident_bytes(int num_chunks, int num_tokens) {
  return num_chunks * num_tokens * kTileChunkBytes / kTokenTile;
}

DecodeParams decode_params(const FastLinear& linear, const std::byte* packed);

/// The kernel of cuda_fast_decode_small.cu; false when it is not for this shape.
bool launch_small(cudaStream_t stream, QuantScheme scheme, const DecodeParams& params,
                  int num_multiprocessors);

/// The kernel of cuda_fast_decode_stream.cu, which converts x of up to kStreamDirectTokens itself.
/// One token's QKV is faster alone without it (20 us, not 22), with it a layer is (125 us, not
/// 127).
inline constexpr int kStreamMinTokens = 2;
inline constexpr int kStreamTokens = kTokenTile;
inline constexpr int kStreamDirectTokens = 2;
bool has_stream_kernel(const MatrixPart& part, std::int64_t num_tokens, int num_multiprocessors);
void launch_stream(cudaStream_t stream, const DecodeParams& params, int num_multiprocessors);

}  // namespace winnow::cuda::linear_decode
