// Attention of drafted blocks on Hopper: what the dispatcher and the benchmark call.
#pragma once

#include <cstdint>

#include "ops/cuda/cache_planes.h"
#include "ops/qkv_insert/qkv_insert.h"

struct CUstream_st;

namespace winnow::cuda {

struct DraftBlockArgs {
  const float* qkv = nullptr;  // [num_tokens][q heads, k heads, v heads][128]
  ops::AttentionShape shape;
  float scale = 0.0F;
  std::int32_t window = 0;
  std::int32_t max_slice_tokens = 0;
  DeviceBatch batch;
  CachePlanes planes;    // of the drafter
  float* out = nullptr;  // [num_tokens][num_heads][128]
};

/// Heads of 128 dims, at most 16 query heads a KV head, blocks of 128, an fp8 cache.
bool covers_draft_block(const ops::AttentionShape& shape, const CachePlanes& planes);

/// CTAs that share one (sequence, KV head): 1, or 4 where the device has room for them. Bits are
/// the same.
int draft_block_cluster(std::int64_t num_tiles, int num_multiprocessors);

/// (sequence, eight of its tokens, KV head)s of a call.
std::int64_t draft_block_tiles(const DraftBlockArgs& args);

void launch_draft_block(const DraftBlockArgs& args, int cluster, CUstream_st* stream);

}  // namespace winnow::cuda
