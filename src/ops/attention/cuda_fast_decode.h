// Attention of a few tokens per sequence on Hopper: what the dispatcher and the benchmark call.
#pragma once

#include <cstdint>

#include "ops/cuda/cache_planes.h"
#include "ops/qkv_insert/qkv_insert.h"

struct CUstream_st;

namespace winnow::cuda {

inline constexpr int kAttentionDecodeTokens = 16;  // longest slice that the decode kernels take

struct AttentionDecodeArgs {
  const float* q = nullptr;  // [num_tokens][num_heads][128]
  ops::AttentionShape shape;
  float scale = 0.0F;
  DeviceBatch batch;
  CachePlanes planes;
  const std::int32_t* blocks = nullptr;  // [num_tokens][num_index_heads][top_k_blocks]
  float* out = nullptr;                  // [num_tokens][num_heads][128]
};

/// Heads of 128 dims, at most 16 query heads a KV head, blocks of 128, and a bf16, fp8 or nvfp4
/// cache; for sparse layers top_k ≤ 16.
bool covers_attention_decode(const ops::AttentionShape& shape, const CachePlanes& planes);

/// `blocks` is not null. Slices longer than kAttentionDecodeTokens are left alone, here and below.
void launch_sparse_decode(const AttentionDecodeArgs& args, CUstream_st* stream);

/// Every block up to each token's own; `blocks` is not read. `scratch` of
/// dense_decode_scratch_bytes(), aligned to 16; `num_positions` bounds the context.
std::int64_t dense_decode_scratch_bytes(const AttentionDecodeArgs& args,
                                        std::int32_t num_positions);
void launch_dense_decode(const AttentionDecodeArgs& args, std::int32_t num_positions,
                         int num_multiprocessors, std::byte* scratch, CUstream_st* stream);

}  // namespace winnow::cuda
