// Linear for at most 8 tokens and matrices that one wave of small blocks covers: a block for each
// tile of 16 rows, one warp for each run of columns. Five such blocks fit on a multiprocessor, and
// they may start while the kernel before still runs: their first chunks of weights are then on the
// way before x is there. Floor: bytes of the weights over memory bandwidth.
//
// x is what pack_decode_input() wrote, loaded as far ahead as the weights; it stays in the
// first-level cache, which the weights bypass. Converting x in each block instead took 1 to 4 us
// longer.
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
constexpr int kSmallPartialFloats = kTokenTile * kSumStride;

/// Choices of a kernel: chunks in flight for each warp, and blocks that share a multiprocessor.
template <QuantScheme kSchemeOf, int kDepthOf, int kBlocksOf>
struct SmallConfig {
  static constexpr QuantScheme kScheme = kSchemeOf;
  static constexpr int kDepth = kDepthOf;
  static constexpr int kBlocks = kBlocksOf;
  static constexpr int kChunkBytes = static_cast<int>(chunk_bytes(kScheme));
};

/// Two uint4: the B fragments of a chunk's two halves.
struct InputChunk {
  uint4 halves[2];

  __device__ __forceinline__ void load(const uint4* at) {
    halves[0] = at[0];
    halves[1] = at[32];
  }
};

template <QuantScheme S>
__device__ __forceinline__ void multiply(const LaneChunk<S>& weights, const uint4 (&x)[2],
                                         float (&sums)[4]) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    std::uint32_t a[4];
    weights.fragment(step, a);
    const uint4& half = x[step / 2];
    ptx::mma_m16n8k16_bf16(sums, a, step % 2 == 0 ? half.x : half.z,
                           step % 2 == 0 ? half.y : half.w);
  }
}

template <typename C>
__global__ void __launch_bounds__(kSmallThreads, C::kBlocks)
    sm90_linear_decode_small(const DecodeParams p) {
  __shared__ float partials[kParts][kSmallPartialFloats];
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

  float sums[4] = {};
  if (works) {
    const uint4* x = reinterpret_cast<const uint4*>(p.packed) + first_chunk * 64 + lane;
    InputChunk input[C::kDepth];
#pragma unroll
    for (int d = 0; d < C::kDepth; ++d) {
      if (d < part_chunks) input[d].load(x + d * 64);
    }
    for (int first = 0; first < part_chunks; first += C::kDepth) {
#pragma unroll
      for (int d = 0; d < C::kDepth; ++d) {
        if (first + d >= part_chunks) break;
        multiply(weights[d], input[d].halves, sums);
        if (first + d + C::kDepth < part_chunks) {
          input[d].load(x + (C::kDepth + d) * 64);
          weights[d].load(source, (C::kDepth + d) * C::kChunkBytes);
        }
      }
      source.advance(C::kDepth * C::kChunkBytes);
      x += C::kDepth * 64;
    }
    float* const at = partials[part] + lane % 4 * 2 * kSumStride + lane / 4;
    at[0] = sums[0];
    at[kSumStride] = sums[1];
    at[8] = sums[2];
    at[kSumStride + 8] = sums[3];
  }
  __syncthreads();

  // One output each: 16 rows of 8 tokens.
  const int token = static_cast<int>(threadIdx.x) / 16;
  const int row = tile * 16 + static_cast<int>(threadIdx.x) % 16;
  if (token >= p.num_tokens || row >= p.rows) return;
  const int at = token * kSumStride + static_cast<int>(threadIdx.x) % 16;
  float sum = partials[0][at];
  for (int i = 1; i < p.parts; ++i) sum += partials[i][at];
  sum *= p.sum_scale;
  float* const y = p.y + token * p.y_stride + row;
  *y = p.accumulate ? *y + sum : sum;
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
  // BF16 chunks are twice as long, so half as many are as many bytes in flight.
  constexpr int kDepth = S == QuantScheme::kBF16 ? 2 : 4;
  if (params.num_tiles <= 3 * num_multiprocessors) {
    launch_small_config<SmallConfig<S, kDepth + kDepth / 2, 3>>(stream, params);
  } else {
    launch_small_config<SmallConfig<S, kDepth, kSmallTiles>>(stream, params);
  }
}

bool launch_small(cudaStream_t stream, QuantScheme scheme, const DecodeParams& params,
                  int num_multiprocessors) {
  if (params.num_tokens > kTokenTile || params.num_tiles > kSmallTiles * num_multiprocessors)
    return false;
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
