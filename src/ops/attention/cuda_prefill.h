// Attention for many tokens at once on Hopper: what the dispatcher and the benchmark call.
#pragma once

#include <cstdint>

#include "ops/cuda/cache_planes.h"
#include "ops/qkv_insert/qkv_insert.h"

struct CUstream_st;

namespace winnow::cuda {

struct AttentionPrefillArgs {
  const float* q = nullptr;  // [num_tokens][num_heads][128]
  ops::AttentionShape shape;
  float scale = 0.0F;
  DeviceBatch batch;
  CachePlanes planes;
  const std::int32_t* blocks = nullptr;  // [num_tokens][num_index_heads][top_k_blocks], or null
  float* out = nullptr;                  // [num_tokens][num_heads][128]
};

/// Up to 16 query heads a KV head, head_dim 128, blocks of 128, top_k ≤ 16, and bf16, fp8 or nvfp4.
bool covers_attention_prefill(const ops::AttentionShape& shape, const CachePlanes& planes,
                              bool is_sparse);

/// Takes no scratch.
void launch_attention_prefill(const AttentionPrefillArgs& args, CUstream_st* stream);

}  // namespace winnow::cuda
