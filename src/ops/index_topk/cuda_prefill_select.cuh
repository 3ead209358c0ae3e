// Of the indexer for many tokens: a row's best blocks while its scores come in, and the launch that
// merges what the ranges of a tile found. Included by cuda_prefill.cu alone.
#pragma once

#include "ops/cuda/token_tiles.cuh"
#include "ops/index_topk/cuda_prefill.h"

namespace winnow::cuda::index_prefill {

inline constexpr int kTileRows = 256;
inline constexpr int kListKeys = 16;  // top_k at most
inline constexpr int kMaxRanges = 32;

struct KernelArgs {
  IndexPrefillArgs args;
  std::int32_t queries_per_tile;
  std::int32_t num_ranges;
  std::uint64_t* lists;  // [tile][range][256 rows][16]
  std::byte* operands;   // prepared blocks, [sequence][blocks_per_sequence], or null
  std::int32_t blocks_per_sequence;
};

/// Blocks that the query at `position` ranks by score: [init_blocks, this).
__device__ __forceinline__ int ranked_end(const ops::AttentionShape& shape, int position) {
  return max(position / kFastBlockTokens - shape.local_blocks + 1, 0);
}

__device__ __forceinline__ std::uint32_t ordered_bits(float x) {
  const std::uint32_t bits = __float_as_uint(x);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ __forceinline__ float ordered_value(std::uint32_t bits) {
  return __uint_as_float((bits & 0x80000000U) != 0 ? bits & 0x7FFFFFFFU : ~bits);
}

/// Score first, then the lower block. In a list its slot stands in the low bits; an empty slot is
/// its number alone.
__device__ __forceinline__ std::uint64_t make_key(float score, int block) {
  return std::uint64_t{ordered_bits(score + 0.0F)} << 32 |
         (~static_cast<std::uint32_t>(block) & 0x0FFFFFFFU) << 4;
}
__device__ __forceinline__ bool is_empty(std::uint64_t key) { return (key >> 32) == 0; }
__device__ __forceinline__ int block_of(std::uint64_t key) {
  return static_cast<int>(~(static_cast<std::uint32_t>(key) >> 4) & 0x0FFFFFFFU);
}

/// One row's best blocks, kept by one thread: the slots lie kTileRows keys apart.
struct RowList {
  std::uint64_t* keys = nullptr;
  float threshold = -INFINITY;  // the least score in a full list
  int slot = 0;                 // where that stands: what the next block replaces
  int count = 0;
  int ranked_end = 0;  // blocks from here on are not ranked for this row

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kListKeys; ++i) keys[i * kTileRows] = static_cast<unsigned>(i);
  }

  /// Blocks come in ascending order, so that an equal score does not enter.
  __device__ __forceinline__ void offer(float score, int block) {
    if (!(score > threshold && block < ranked_end)) return;
    if (count < kListKeys) slot = count++;
    keys[slot * kTileRows] = make_key(score, block) | static_cast<unsigned>(slot);
    if (count < kListKeys) return;
    std::uint64_t least = keys[0];
#pragma unroll
    for (int i = 1; i < kListKeys; ++i) {
      const std::uint64_t key = keys[i * kTileRows];
      least = key < least ? key : least;
    }
    slot = static_cast<int>(least & 15);
    threshold = ordered_value(static_cast<std::uint32_t>(least >> 32));
  }
};

inline constexpr int kMergeThreads = 256;
inline constexpr int kMergeKeysPerLane = kMaxRanges * kListKeys / 32;

/// The 16 largest of a warp's keys, one to a lane (0 to 15) in descending order.
__device__ inline std::uint64_t best_keys(std::uint64_t (&keys)[kMergeKeysPerLane]) {
  const int lane = threadIdx.x & 31;
  std::uint64_t mine = 0;
  for (int round = 0; round < kListKeys; ++round) {
    std::uint64_t own = 0;
#pragma unroll
    for (int i = 0; i < kMergeKeysPerLane; ++i) own = keys[i] > own ? keys[i] : own;
    std::uint64_t best = own;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      const std::uint64_t other = __shfl_xor_sync(~0U, best, step);
      best = other > best ? other : best;
    }
#pragma unroll
    for (int i = 0; i < kMergeKeysPerLane; ++i) {
      if (keys[i] == best) keys[i] = 0;
    }
    if (lane == round) mine = best;
  }
  return mine;
}

/// One warp a row: the forced blocks and the best of the rest, ascending.
static __global__ void __launch_bounds__(kMergeThreads) index_prefill_merge(const KernelArgs k) {
  __shared__ TokenTile shared_tile;
  constexpr int kRowsPerBlock = kMergeThreads / 32;
  constexpr int kBlocksPerTile = kTileRows / kRowsPerBlock;
  const int index = static_cast<int>(blockIdx.x) / kBlocksPerTile;
  if (threadIdx.x < 32) {
    const TokenTile tile = find_token_tile(k.args.batch, k.queries_per_tile, index, false);
    if (threadIdx.x == 0) shared_tile = tile;
  }
  __syncthreads();
  const TokenTile tile = shared_tile;
  const ops::AttentionShape& shape = k.args.shape;
  const int row = static_cast<int>(blockIdx.x) % kBlocksPerTile * kRowsPerBlock +
                  static_cast<int>(threadIdx.x) / 32;
  if (row >= tile.num_tokens * shape.num_index_heads) return;

  const int lane = threadIdx.x & 31;
  const int num_keys = k.num_ranges * kListKeys;
  const auto key_at = [&](int i) -> std::uint64_t {
    if (i >= num_keys) return 0;
    const std::int64_t list =
        (std::int64_t{index} * k.num_ranges + i / kListKeys) * kTileRows + row;
    const std::uint64_t key = k.lists[list * kListKeys + i % kListKeys];
    return is_empty(key) ? 0 : key;
  };
  std::uint64_t key = 0;
  if (num_keys <= 32) {
    key = key_at(lane);
  } else {
    std::uint64_t keys[kMergeKeysPerLane];
#pragma unroll
    for (int i = 0; i < kMergeKeysPerLane; ++i) keys[i] = key_at(i * 32 + lane);
    key = best_keys(keys);
  }

  const int position = tile.first_position + row / shape.num_index_heads;
  const int last = position / kFastBlockTokens;
  const int top_k = shape.top_k_blocks;
  const int first_local = max(last - shape.local_blocks + 1, 0);
  const int num_local = min(shape.local_blocks > 0 ? last - first_local + 1 : 0, top_k);
  const int num_init = min(min(shape.init_blocks, shape.local_blocks > 0 ? first_local : last + 1),
                           top_k - num_local);
  const int budget = top_k - num_local - num_init;
  int rank = 0;
#pragma unroll
  for (int i = 0; i < 32; ++i) rank += __shfl_sync(~0U, key, i) > key ? 1 : 0;
  const bool is_kept = key != 0 && rank < budget;
  const unsigned kept = __ballot_sync(~0U, is_kept);
  const int block = block_of(key);
  int place = num_init;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int other = __shfl_sync(~0U, block, i);
    place += (kept >> i & 1) != 0 && other < block ? 1 : 0;
  }
  std::int32_t* const out =
      k.args.blocks +
      (std::int64_t{tile.first_token} * shape.num_index_heads + row) * shape.top_k_blocks;
  const int num_kept = __popc(kept);
  if (is_kept) out[place] = block;
  if (lane < top_k) {
    if (lane < num_init) out[lane] = lane;
    const int local = lane - num_init - num_kept;
    if (local >= 0) out[lane] = local < num_local ? first_local + local : -1;
  }
}

}  // namespace winnow::cuda::index_prefill
