// Block selection for many tokens at once on Hopper: what the dispatcher and the benchmark call.
#pragma once

#include <cstdint>

#include "ops/cuda/cache_planes.h"
#include "ops/qkv_insert/qkv_insert.h"

struct CUstream_st;

namespace winnow::cuda {

struct IndexPrefillArgs {
  const float* index_q = nullptr;  // [num_tokens][num_index_heads][128]
  ops::AttentionShape shape;
  DeviceBatch batch;
  CachePlanes planes;
  std::int32_t num_positions = 0;
  std::int32_t num_multiprocessors = 0;
  std::int32_t* blocks = nullptr;  // out [num_tokens][num_index_heads][top_k_blocks]
};

/// Up to 8 index heads of 128 dims, blocks of 128, top_k ≤ 16, and a bf16, fp8 or nvfp4 plane.
bool covers_index_prefill(const ops::AttentionShape& shape, const CachePlanes& planes);

/// Scratch that launch_index_prefill takes at most for batches up to these sizes.
std::int64_t index_prefill_scratch_bytes(std::int64_t max_tokens, std::int64_t max_sequences,
                                         int num_index_heads, int num_multiprocessors);

/// `scratch` of index_prefill_scratch_bytes(num_tokens, num_sequences, …), aligned to 16.
void launch_index_prefill(const IndexPrefillArgs& args, std::byte* scratch, CUstream_st* stream);

}  // namespace winnow::cuda
