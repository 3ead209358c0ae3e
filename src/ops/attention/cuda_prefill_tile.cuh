// Of attention for many tokens: what the sparse and the dense kernel share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/attention/cuda_prefill.h"
#include "ops/cuda/cache_fragments.cuh"
#include "ops/cuda/token_tiles.cuh"

namespace winnow::cuda {

void launch_sparse_prefill(const AttentionPrefillArgs& args, CUstream_st* stream);
void launch_dense_prefill(const AttentionPrefillArgs& args, CUstream_st* stream);

namespace attention_prefill {

inline constexpr int kRowsPerToken = 16;  // query heads of one KV head at most
inline constexpr int kMaxTopK = 16;
inline constexpr int kQueryBytes = 4 * kRowsPerToken * kFastDim * 2;  // of a warpgroup: 4 tokens

/// Writes the 16 rows of a warp's token to the A operand of its warpgroup, from row `first_row` on.
template <CacheFormat F>
__device__ __forceinline__ void store_queries(const float* q, int group, bool is_token,
                                              int first_row, std::byte* operand) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int c = lane & 3;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int head = lane / 4 + 8 * half;
    const int row = first_row + head;
    const bool is_row = is_token && head < group;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 x = is_row ? *reinterpret_cast<const float2*>(q + head * kFastDim +
                                                                   key_dim(F, k, 2 * c + 8 * i))
                                : make_float2(0.0F, 0.0F);
        const int chunk = (k & 3) * 2 + i;
        *reinterpret_cast<std::uint32_t*>(operand + (k >> 2) * (kQueryBytes / 2) + row * 128 +
                                          ((chunk ^ (row & 7)) << 4) + c * 4) =
            pack_operands<F>(x.x, x.y);
      }
    }
  }
}

/// Where a warp's token's rows of the result begin.
__device__ __forceinline__ float* result_rows(const AttentionPrefillArgs& args,
                                              const TokenTile& tile, int kv_head) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int group = args.shape.num_heads / args.shape.num_kv_heads;
  return args.out +
         ((std::int64_t{tile.first_token} + warp) * args.shape.num_heads + kv_head * group) *
             kFastDim;
}

}  // namespace attention_prefill
}  // namespace winnow::cuda
