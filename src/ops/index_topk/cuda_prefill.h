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

/// What launch_index_prefill wants at most for batches of one long sequence up to these sizes.
std::int64_t index_prefill_scratch_bytes(std::int64_t max_tokens, std::int64_t max_sequences,
                                         std::int64_t max_positions, int num_index_heads,
                                         int num_multiprocessors);

/// What it takes for this batch when there are `available` bytes: with room for every sequence's
/// blocks in 16 bits it converts each once. The result is at least what it needs.
std::int64_t index_prefill_scratch_bytes(const IndexPrefillArgs& args, std::int64_t available);

/// `scratch` of index_prefill_scratch_bytes(args, …), aligned to 128.
void launch_index_prefill(const IndexPrefillArgs& args, std::byte* scratch,
                          std::int64_t scratch_bytes, CUstream_st* stream);

}  // namespace winnow::cuda
