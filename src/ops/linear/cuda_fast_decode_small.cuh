// A tile of 16 rows of a linear for at most 16 tokens, by one block of kSmallThreads threads: one
// warp for each run of columns (cuda_fast.h). The device code of cuda_fast_decode_small.cu, for
// kernels that do more than that.
//
// x is what pack_decode_input() wrote, loaded as far ahead as the weights; it stays in the
// first-level cache, which the weights bypass.
#pragma once

#include "ops/cuda/ptx.cuh"
#include "ops/cuda/ptx_sm90.cuh"
#include "ops/linear/cuda_fast_decode.cuh"
#include "ops/linear/cuda_lane_chunk.cuh"

namespace winnow::cuda::linear_decode {

inline constexpr int kSmallThreads = 32 * kParts;

/// Choices of a kernel: tiles of 8 tokens, chunks in flight for each warp, and blocks that share a
/// multiprocessor.
template <QuantScheme kSchemeOf, int kTokenTilesOf, int kDepthOf, int kBlocksOf>
struct SmallConfig {
  static constexpr QuantScheme kScheme = kSchemeOf;
  static constexpr int kTokenTiles = kTokenTilesOf;
  static constexpr int kDepth = kDepthOf;
  static constexpr int kBlocks = kBlocksOf;
  static constexpr int kChunkBytes = static_cast<int>(chunk_bytes(kScheme));
  static constexpr int kChunkVectors = 64 * kTokenTiles;  // of packed x
  static constexpr int kPartialFloats = kTokenTiles * kTokenTile * kSumStride;
  static constexpr int kSharedFloats = kParts * kPartialFloats;
};

/// The B fragments of a chunk's two halves.
template <int kTokenTiles>
struct InputChunk {
  uint4 halves[kTokenTiles][2];

  __device__ __forceinline__ void load(const uint4* at) {
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
      halves[t][0] = at[t * 64];
      halves[t][1] = at[t * 64 + 32];
    }
  }
};

template <QuantScheme S, int kTokenTiles>
__device__ __forceinline__ void multiply(const LaneChunk<S>& weights,
                                         const InputChunk<kTokenTiles>& x,
                                         float (&sums)[kTokenTiles][4]) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    std::uint32_t a[4];
    weights.fragment(step, a);
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
      const uint4& half = x.halves[t][step / 2];
      ptx::mma_m16n8k16_bf16(sums[t], a, step % 2 == 0 ? half.x : half.z,
                             step % 2 == 0 ? half.y : half.w);
    }
  }
}

/// begin() starts the first weights on their way; finish() needs x.
template <typename C>
struct SmallTile {
  LaneChunk<C::kScheme> weights[C::kDepth];
  LaneSource source;
  int tile;
  int part;
  int lane;
  int part_chunks;
  bool works;

  __device__ __forceinline__ void begin(const DecodeParams& p, int tile_of_block) {
    tile = tile_of_block;
    part = static_cast<int>(threadIdx.x) / 32;
    lane = static_cast<int>(threadIdx.x) % 32;
    part_chunks = p.num_chunks / p.parts;
    works = part < p.parts;
    source = lane_source<C::kScheme>(
        p.w + (std::int64_t{tile} * p.num_chunks + part * part_chunks) * C::kChunkBytes, lane);
    if (!works) return;
#pragma unroll
    for (int d = 0; d < C::kDepth; ++d) {
      if (d < part_chunks) weights[d].load(source, d * C::kChunkBytes);
    }
  }

  /// Leaves each run's sums in `partials`, kSharedFloats of shared memory, as [run][token][row].
  __device__ __forceinline__ void sum_runs(const DecodeParams& p, float* partials) {
    if (works) {
      float sums[C::kTokenTiles][4] = {};
      const uint4* x =
          reinterpret_cast<const uint4*>(p.packed) + part * part_chunks * C::kChunkVectors + lane;
      InputChunk<C::kTokenTiles> input[C::kDepth];
#pragma unroll
      for (int d = 0; d < C::kDepth; ++d) {
        if (d < part_chunks) input[d].load(x + d * C::kChunkVectors);
      }
      for (int first = 0; first < part_chunks; first += C::kDepth) {
#pragma unroll
        for (int d = 0; d < C::kDepth; ++d) {
          if (first + d >= part_chunks) break;
          multiply(weights[d], input[d], sums);
          if (first + d + C::kDepth < part_chunks) {
            input[d].load(x + (C::kDepth + d) * C::kChunkVectors);
            weights[d].load(source, (C::kDepth + d) * C::kChunkBytes);
          }
        }
        source.advance(C::kDepth * C::kChunkBytes);
        x += C::kDepth * C::kChunkVectors;
      }
#pragma unroll
      for (int t = 0; t < C::kTokenTiles; ++t) {
        float* const at = partials + part * C::kPartialFloats +
                          (t * kTokenTile + lane % 4 * 2) * kSumStride + lane / 4;
        at[0] = sums[t][0];
        at[kSumStride] = sums[t][1];
        at[8] = sums[t][2];
        at[kSumStride + 8] = sums[t][3];
      }
    }
    __syncthreads();
  }

  /// The runs' sums added in ascending order; row_in_tile < 16.
  __device__ __forceinline__ static float total(const DecodeParams& p, const float* partials,
                                                int token, int row_in_tile) {
    const int at = token * kSumStride + row_in_tile;
    float sum = partials[at];
    for (int i = 1; i < p.parts; ++i) sum += partials[i * C::kPartialFloats + at];
    return sum * p.sum_scale;
  }

  __device__ __forceinline__ void finish(const DecodeParams& p, float* partials) {
    sum_runs(p, partials);
    // One output of each 8 tokens for each thread.
    const int row_in_tile = static_cast<int>(threadIdx.x) % 16;
    const int row = tile * 16 + row_in_tile;
#pragma unroll
    for (int t = 0; t < C::kTokenTiles; ++t) {
      const int token = t * kTokenTile + static_cast<int>(threadIdx.x) / 16;
      if (token >= p.num_tokens || row >= p.rows) return;
      const float sum = total(p, partials, token, row_in_tile);
      float* const y = p.y + token * p.y_stride + row;
      *y = p.accumulate ? *y + sum : sum;
    }
  }
};

}  // namespace winnow::cuda::linear_decode
