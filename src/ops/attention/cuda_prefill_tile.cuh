// Of attention for many tokens: what the sparse and the dense kernel share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/attention/cuda_prefill.h"
#include "ops/cuda/cache_fragments.cuh"
#include "ops/cuda/page_operand.cuh"
#include "ops/cuda/token_tiles.cuh"
#include "ops/cuda/wgmma_f16.cuh"

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
      std::byte* const step = operand + (k >> 2) * (kQueryBytes / 2) + row * 128;
      if constexpr (F == CacheFormat::kBf16) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float2 x = is_row ? *reinterpret_cast<const float2*>(
                                        q + head * kFastDim + operand_dim(F, k, 2 * c + 8 * i))
                                  : make_float2(0.0F, 0.0F);
          const int chunk = (k & 3) * 2 + i;
          *reinterpret_cast<std::uint32_t*>(step + ((chunk ^ (row & 7)) << 4) + c * 4) =
              pack_operands<F>(x.x, x.y);
        }
      } else {
        const float4 x =
            is_row
                ? *reinterpret_cast<const float4*>(q + head * kFastDim + operand_dim(F, k, 4 * c))
                : make_float4(0.0F, 0.0F, 0.0F, 0.0F);
        *reinterpret_cast<uint2*>(step + key_place(row & 7, c, k & 3)) =
            make_uint2(pack_operands<F>(x.x, x.y), pack_operands<F>(x.z, x.w));
      }
    }
  }
}

/// Scores of a block: the warpgroup's 64 rows of queries against 128 keys, complete on return. Both
/// are swizzled operands in shared memory.
template <CacheFormat F>
__device__ __forceinline__ void multiply_keys(std::uint64_t queries, std::uint64_t keys,
                                              float (&scores)[64]) {
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const int offset = (k / 4) * kOperandHalfBytes + (k % 4) * 32;
    const int query_offset = (k / 4) * (kQueryBytes / 2) + (k % 4) * 32;
    ptx::wgmma_m64n128k16<F == CacheFormat::kBf16>(scores, queries + (query_offset >> 4),
                                                   keys + (offset >> 4), k > 0);
  }
  ptx::wgmma_commit_group();
  ptx::wgmma_wait_group<0>();
  ptx::pin_registers(scores);
}

/// Starts outputs += P · V of a block; the caller waits for it.
template <CacheFormat F>
__device__ __forceinline__ void start_values(const std::uint32_t (&p)[8][4], std::uint64_t values,
                                             float (&outputs)[64]) {
  ptx::pin_registers(outputs);
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    ptx::wgmma_m64n128k16<F == CacheFormat::kBf16, true>(outputs, p[k],
                                                         values + (k * 16 * 128 >> 4), 1);
  }
  ptx::wgmma_commit_group();
}

/// P of a warp whose token does not see the block.
__device__ __forceinline__ void see_nothing(std::uint32_t (&p)[8][4]) {
#pragma unroll
  for (int k = 0; k < 8; ++k) {
#pragma unroll
    for (int j = 0; j < 4; ++j) p[k][j] = 0;
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
