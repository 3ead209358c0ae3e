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

}  // namespace winnow::cuda::linear_decode
