// Of the drafter's attention: what one CTA works on, and its shared memory. Included by
// cuda_block.cu alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cuda/cache_fragments.cuh"
#include "ops/cuda/page_operand.cuh"
#include "ops/draft_attention/cuda_block.h"
#include "ops/draft_attention/draft_attention.h"

namespace winnow::cuda::draft_block {

inline constexpr CacheFormat kFormat = CacheFormat::kFp8;
inline constexpr int kTileTokens = 8;
inline constexpr int kRowsPerToken = 16;
inline constexpr int kStages = 3;  // pages of K, and of V, in operands
inline constexpr int kQuarters = 4;
inline constexpr int kConsumerThreads = 256;
inline constexpr int kProducerThreads = 128;
inline constexpr int kThreads = kConsumerThreads + kProducerThreads;
inline constexpr int kConsumerWarps = kConsumerThreads / 32;
/// K (0) or V (1) on its way to the consumers.
struct Pipe {
  std::uint64_t full[kStages];
  std::uint64_t empty[kStages];
};

inline constexpr int kQueryHalfBytes = 64 * 128;  // 64 dims of a warpgroup's 64 rows

/// A row's softmax of one quarter, for the other CTAs of the cluster.
struct RowState {
  float maximum;
  float sum;
};

struct Shared {
  alignas(1024) std::byte operands[2][kStages][kOperandBytes];  // later: a quarter's outputs
  alignas(1024) std::byte queries[2][2 * kQueryHalfBytes];      // of each warpgroup
  Pipe pipes[2];
  RowState rows[kTileTokens * kRowsPerToken];
};
static_assert(sizeof(Shared) <= 227 * 1024);
static_assert(sizeof(Shared::operands) >= kTileTokens * kRowsPerToken * kFastDim * sizeof(float));

/// What one CTA works on.
struct Tile {
  ops::SequenceSlice slice;
  std::int32_t first = 0;   // token of the block
  std::int32_t count = 0;   // tokens
  std::int32_t oldest = 0;  // position that the first of them sees
  std::int32_t first_page = 0;
  std::int32_t num_pages = 0;  // of all quarters
  std::int32_t begin = 0;      // of this CTA, from first_page on
  std::int32_t end = 0;
  int kv_head = 0;

  __device__ std::int32_t block_end() const { return slice.first_position + slice.num_tokens; }
  __device__ std::int32_t pages_of_quarter() const {
    return (num_pages + kQuarters - 1) / kQuarters;
  }
};

/// The oldest position that token `token` of the block sees: its own block is never hidden.
__device__ __forceinline__ std::int32_t oldest_seen(const ops::SequenceSlice& slice,
                                                    std::int32_t token, std::int32_t window) {
  return min(ops::first_visible(slice.first_position + token, window), slice.first_position);
}

template <int kCluster>
__device__ __forceinline__ Tile find_tile(const DraftBlockArgs& args) {
  Tile tile;
  const int tiles = (args.max_slice_tokens + kTileTokens - 1) / kTileTokens;
  tile.slice = args.batch.sequences[static_cast<int>(blockIdx.z) / tiles];
  tile.first = static_cast<int>(blockIdx.z) % tiles * kTileTokens;
  tile.count = min(kTileTokens, tile.slice.num_tokens - tile.first);
  tile.kv_head = static_cast<int>(blockIdx.y);
  if (tile.count <= 0) return tile;
  tile.oldest = oldest_seen(tile.slice, tile.first, args.window);
  tile.first_page = tile.oldest / kFastBlockTokens;
  tile.num_pages = (tile.block_end() - 1) / kFastBlockTokens - tile.first_page + 1;
  tile.end = tile.num_pages;
  if constexpr (kCluster == kQuarters) {
    const std::int32_t quarter = tile.pages_of_quarter();
    tile.begin = min(static_cast<int>(blockIdx.x) * quarter, tile.num_pages);
    tile.end = min(tile.begin + quarter, tile.num_pages);
  }
  return tile;
}

}  // namespace winnow::cuda::draft_block
