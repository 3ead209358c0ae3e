// Linear for at most 16 tokens and matrices that one wave of small blocks covers: a block for each
// tile of 16 rows, one warp for each run of columns. Five such blocks fit on a multiprocessor, and
// they may start while the kernel before still runs: their first chunks of weights are then on the
// way before x is there. Floor: bytes of the weights over memory bandwidth.
//
// x is what pack_decode_input() wrote, loaded as far ahead as the weights; it stays in the
// first-level cache, which the weights bypass. A block that converts x itself saves a launch for
// one token of the fused QKV (16.8 us, not 17.2) and loses elsewhere (output projection 17.3 us,
// not 16.4).
#include <cuda_runtime.h>

#include "ops/cuda/check.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/cuda/ptx_sm90.cuh"
#include "ops/linear/cuda_fast.h"
#include "ops/linear/cuda_fast_decode.cuh"
#include "ops/linear/cuda_lane_chunk.cuh"

namespace winnow::cuda {
namespace linear_decode {

constexpr int kSmallThreads = 32 * kParts;

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

template <typename C>
__global__ void __launch_bounds__(kSmallThreads, C::kBlocks)
    sm90_linear_decode_small(const DecodeParams p) {
  __shared__ float partials[kParts][C::kPartialFloats];
  const int part = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int tile = static_cast<int>(blockIdx.x);
  const int part_chunks = p.num_chunks / p.parts;
  const int first_chunk = part * part_chunks;
  const bool works = part < p.parts;
  ptx::griddepcontrol_launch_dependents();

  LaneChunk<C::kScheme> weights[C::kDepth];
  LaneSource source = lane_source<C::kScheme>(
      p.w + (std::int64_t{tile} * p.num_chunks + first_chunk) * C::kChunkBytes, lane);
  if (works) {
#pragma unroll
    for (int d = 0; d < C::kDepth; ++d) {
      if (d < part_chunks) weights[d].load(source, d * C::kChunkBytes);
    }
  }
  ptx::griddepcontrol_wait();

  if (works) {
    float sums[C::kTokenTiles][4] = {};
    const uint4* x =
        reinterpret_cast<const uint4*>(p.packed) + first_chunk * C::kChunkVectors + lane;
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
      float* const at = partials[part] + (t * kTokenTile + lane % 4 * 2) * kSumStride + lane / 4;
      at[0] = sums[t][0];
      at[kSumStride] = sums[t][1];
      at[8] = sums[t][2];
      at[kSumStride + 8] = sums[t][3];
    }
  }
  __syncthreads();

  // One output of each 8 tokens for each thread.
  const int row_in_tile = static_cast<int>(threadIdx.x) % 16;
  const int row = tile * 16 + row_in_tile;
#pragma unroll
  for (int t = 0; t < C::kTokenTiles; ++t) {
    const int token = t * kTokenTile + static_cast<int>(threadIdx.x) / 16;
    if (token >= p.num_tokens || row >= p.rows) return;
    const int at = token * kSumStride + row_in_tile;
    float sum = partials[0][at];
    for (int i = 1; i < p.parts; ++i) sum += partials[i][at];
    sum *= p.sum_scale;
    float* const y = p.y + token * p.y_stride + row;
    *y = p.accumulate ? *y + sum : sum;
  }
}

template <typename C>
void launch_small_config(cudaStream_t stream, const DecodeParams& params) {
  launch_overlapping(
      sm90_linear_decode_small<C>,
      {.grid = dim3(static_cast<unsigned>(params.num_tiles)), .block = dim3(kSmallThreads)}, stream,
      params, "sm90_linear_decode_small");
}

template <QuantScheme S>
void launch_small_scheme(cudaStream_t stream, const DecodeParams& params, int num_multiprocessors) {
  // BF16 chunks are twice as long as MXFP8's, so half as many are as many bytes in flight.
  constexpr int kDepth = S == QuantScheme::kBF16 ? 2 : 4;
  if (params.num_tokens > kTokenTile) {
    launch_small_config<SmallConfig<S, 2, 4, 3>>(stream, params);
  } else if (params.num_tiles <= 3 * num_multiprocessors) {
    launch_small_config<SmallConfig<S, 1, kDepth + kDepth / 2, 3>>(stream, params);
  } else {
    launch_small_config<SmallConfig<S, 1, kDepth, kSmallTiles>>(stream, params);
  }
}

bool launch_small(cudaStream_t stream, QuantScheme scheme, const DecodeParams& params,
                  int num_multiprocessors) {
  // Sixteen tokens' x leaves registers for three blocks a multiprocessor.
  const int most_tiles = params.num_tokens <= kTokenTile ? kSmallTiles : 3;
  if (params.num_tokens > 2 * kTokenTile || params.num_tiles > most_tiles * num_multiprocessors) {
    return false;
  }
  switch (scheme) {
    case QuantScheme::kMxfp8:
      launch_small_scheme<QuantScheme::kMxfp8>(stream, params, num_multiprocessors);
      return true;
    case QuantScheme::kBF16:
      launch_small_scheme<QuantScheme::kBF16>(stream, params, num_multiprocessors);
      return true;
    case QuantScheme::kNvfp4:
      launch_small_scheme<QuantScheme::kNvfp4>(stream, params, num_multiprocessors);
      return true;
    case QuantScheme::kF32:
      return false;
  }
  return false;
}

}  // namespace linear_decode
}  // namespace winnow::cuda
