// x of a decode kernel to bf16 in the order of the matrix unit's B operand: the device code of
// pack_decode_input().
#pragma once

#include <cstdint>

#include "ops/cuda/ptx_sm90.cuh"
#include "ops/linear/cuda_fast_decode.cuh"
#include "ops/linear/cuda_matrix.h"

namespace winnow::cuda::linear_decode {

struct DecodePack {
  const float* x;
  uint4* packed;
  std::int64_t x_stride;
  int num_tokens;
  int token_tiles;
  int num_chunks;
};

inline constexpr int kPackThreads = 128;

/// Block `block` of `num_blocks`, kPackThreads threads each. A thread's vector is one lane's of one
/// half of a chunk's B fragments: [chunk][token tile][half][lane].
__device__ __forceinline__ void pack_decode_vectors(const DecodePack& p, int block,
                                                    int num_blocks) {
  const int count = 64 * p.token_tiles * p.num_chunks;
  for (int index = block * kPackThreads + static_cast<int>(threadIdx.x); index < count;
       index += num_blocks * kPackThreads) {
    const int lane = index % 32;
    const int half = index / 32 % 2;
    const int tile = index / 64 % p.token_tiles;
    const int chunk = index / (64 * p.token_tiles);
    const int token = tile * kTokenTile + lane / 4;
    uint4 out{};
    if (token < p.num_tokens) {
      const float* const at =
          p.x + token * p.x_stride + chunk * kChunkCols + half * 32 + lane % 4 * 2;
      out = {ptx::cvt_rn_bf16x2(at[0], at[1]), ptx::cvt_rn_bf16x2(at[8], at[9]),
             ptx::cvt_rn_bf16x2(at[16], at[17]), ptx::cvt_rn_bf16x2(at[24], at[25])};
    }
    p.packed[index] = out;
  }
}

/// The same for the tokens there are, [chunk][half][token][c] × 16 bytes, by a block of
/// `num_threads`. x is aligned to 8 bytes, its stride even.
__device__ __forceinline__ void convert_input(const DecodeParams& p, int num_threads, void* out) {
  const int units = p.num_chunks * 2 * p.num_tokens * 4;
  for (int unit = static_cast<int>(threadIdx.x); unit < units; unit += num_threads) {
    const int c = unit % 4;
    const int token = unit / 4 % p.num_tokens;
    const int half_chunk = unit / 4 / p.num_tokens;
    const auto* const at =
        reinterpret_cast<const float2*>(p.x + token * p.x_stride + half_chunk * 32 + 2 * c);
    const float2 v0 = at[0];
    const float2 v1 = at[4];
    const float2 v2 = at[8];
    const float2 v3 = at[12];
    static_cast<uint4*>(out)[unit] = {
        ptx::cvt_rn_bf16x2(v0.x, v0.y), ptx::cvt_rn_bf16x2(v1.x, v1.y),
        ptx::cvt_rn_bf16x2(v2.x, v2.y), ptx::cvt_rn_bf16x2(v3.x, v3.y)};
  }
}

}  // namespace winnow::cuda::linear_decode
