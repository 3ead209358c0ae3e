// Block selection for a few tokens per sequence on Hopper: what the dispatcher and the benchmark
// call.
#pragma once

#include <cstdint>

#include "ops/cuda/cache_planes.h"
#include "ops/qkv_insert/qkv_insert.h"

struct CUstream_st;

namespace winnow::cuda {

inline constexpr int kIndexDecodeTokens = 16;  // longest slice that the decode kernel takes

struct IndexDecodeArgs {
  const float* index_q = nullptr;  // [num_tokens][num_index_heads][128]
  ops::AttentionShape shape;
  DeviceBatch batch;
  CachePlanes planes;
  std::int32_t max_slice_tokens = 0;  // longer slices than kIndexDecodeTokens are left alone
  std::int32_t num_positions = 0;
  std::int32_t num_multiprocessors = 0;
  std::int32_t* blocks = nullptr;  // out [num_tokens][num_index_heads][top_k_blocks]
};

/// Up to 8 index heads of 128 dims, blocks of 128 of which the last is always kept, top_k ≤ 16, and
/// a bf16, fp8 or nvfp4 plane.
bool covers_index_decode(const ops::AttentionShape& shape, const CachePlanes& planes);

/// Scratch that launch_index_decode takes.
std::int64_t index_decode_scratch_bytes(const IndexDecodeArgs& args);

/// `scratch` aligned to 16.
void launch_index_decode(const IndexDecodeArgs& args, std::byte* scratch, CUstream_st* stream);

}  // namespace winnow::cuda
