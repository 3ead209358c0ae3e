// A batch cut in tiles of neighbouring tokens of one sequence, on the device: how many tiles a
// sequence has is not known on the host.
#pragma once

#include "ops/cuda/cache_planes.h"

namespace winnow::cuda {

struct TokenTile {
  std::int32_t first_token;
  std::int32_t num_tokens;  // 0: no such tile
  std::int32_t first_position;
  std::int32_t num_tiles;  // of the batch
  std::int32_t sequence;
  const std::int32_t* block_table;
};

/// Tiles of a batch at most.
inline std::int64_t max_token_tiles(std::int64_t num_tokens, std::int64_t num_sequences,
                                    std::int64_t tile_tokens) {
  const std::int64_t partial = num_sequences < num_tokens ? num_sequences : num_tokens;
  return (num_tokens + tile_tokens - 1) / tile_tokens + (partial > 0 ? partial - 1 : 0);
}

__device__ __forceinline__ int token_tiles_of(std::int32_t num_tokens, int tile_tokens) {
  return (num_tokens + tile_tokens - 1) / tile_tokens;
}

/// Tile number `index` of the batch (counted from the end when `reversed`: later tiles see more
/// blocks, so they start first). By one warp.
__device__ inline TokenTile find_token_tile(const DeviceBatch& batch, int tile_tokens, int index,
                                            bool reversed) {
  if (batch.num_sequences == 1) {
    // Known without a look at the sequence, whose fields may arrive later.
    const int tiles = token_tiles_of(batch.num_tokens, tile_tokens);
    TokenTile tile{.num_tiles = tiles};
    if (index >= tiles) return tile;
    const int offset = (reversed ? tiles - 1 - index : index) * tile_tokens;
    tile.first_token = offset;
    tile.num_tokens = min(tile_tokens, batch.num_tokens - offset);
    tile.first_position = batch.sequences->first_position + offset;
    tile.block_table = batch.sequences->block_table;
    return tile;
  }
  const int lane = threadIdx.x & 31;
  int total = 0;
  for (int s = lane; s < batch.num_sequences; s += 32) {
    total += token_tiles_of(batch.sequences[s].num_tokens, tile_tokens);
  }
  total = static_cast<int>(__reduce_add_sync(~0U, static_cast<unsigned>(total)));
  TokenTile tile{.num_tiles = total};
  if (index >= total) return tile;
  int wanted = reversed ? total - 1 - index : index;
  for (int first = 0; first < batch.num_sequences; first += 32) {
    const int s = first + lane;
    const int count =
        s < batch.num_sequences ? token_tiles_of(batch.sequences[s].num_tokens, tile_tokens) : 0;
    int end = count;
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0U, end, step);
      if (lane >= step) end += other;
    }
    const unsigned holders = __ballot_sync(~0U, wanted < end && wanted >= end - count);
    if (holders != 0) {
      const int holder = __ffs(static_cast<int>(holders)) - 1;
      const int offset = (wanted - __shfl_sync(~0U, end - count, holder)) * tile_tokens;
      const ops::SequenceSlice& slice = batch.sequences[first + holder];
      tile.first_token = slice.first_token + offset;
      tile.num_tokens = min(tile_tokens, slice.num_tokens - offset);
      tile.first_position = slice.first_position + offset;
      tile.sequence = first + holder;
      tile.block_table = slice.block_table;
      return tile;
    }
    wanted -= __shfl_sync(~0U, end, 31);
  }
  return tile;
}

}  // namespace winnow::cuda
