// Prefill's shared memory, its tiles, and the warps that bring both operands: see
// cuda_fast_prefill.cu.
#pragma once

#include "ops/cuda/ptx.cuh"
#include "ops/cuda/ring_place.cuh"
#include "ops/moe/cuda_fast.h"

namespace winnow::cuda::fast_moe::tiles {

constexpr int kGroupThreads = 128;
constexpr int kComputeGroups = 2;
constexpr int kThreads = (kComputeGroups + 1) * kGroupThreads;
constexpr int kTilesOfGroup = 8;  // 16-row tiles of weights a warpgroup multiplies
constexpr int kOperandStages = 4;
constexpr int kWeightStages = 3;
constexpr int kHeldTotals = 4;  // of a thread's float4s of totals, in registers
constexpr int kSharedTotals = kPrefillTokens / 4 - kHeldTotals;
constexpr int kOperandBytes = kPrefillTokens * 128;

constexpr int kWeightBytes = kTilesOfGroup * static_cast<int>(chunk_bytes(QuantScheme::kMxfp8));

/// A warpgroup's totals; between tiles, its chunk of activations.
union Totals {
  float4 sums[kSharedTotals][kGroupThreads];
  std::byte activations[kPrefillTokens * 128];
};

struct Memory {
  std::byte operands[kOperandStages][kOperandBytes];  // aligned to 1024
  Totals totals[kComputeGroups];
  std::byte weights[kComputeGroups][kWeightStages][kWeightBytes];  // a ring a warpgroup
  std::uint64_t operands_full[kOperandStages];
  std::uint64_t operands_empty[kOperandStages];
  std::uint64_t weights_full[kComputeGroups][kWeightStages];
  std::uint64_t weights_empty[kComputeGroups][kWeightStages];
};
constexpr int kSharedBytes = 1024 + static_cast<int>(sizeof(Memory));
static_assert(kSharedBytes <= 227 * 1024);
constexpr int kRowsOfGroup = 64;  // of one of the two halves

struct Params {
  Layer layer;
  Workspace work;
};

/// What both sides need to know of a tile.
struct Tile {
  const ActiveExpert& expert;
  int row = 0;
  int num_chunks = 0;
  QuantScheme scheme = QuantScheme::kNvfp4;

  __device__ Tile(const Params& params, int phase, int index)
      : Tile(
            params, phase,
            params.work.tiles[static_cast<std::int64_t>(phase) * max_tiles(params.layer) + index]) {
  }
  __device__ Tile(const Params& params, int phase, const WorkPlace& place)
      : expert(params.work.active[place.entry]), row(place.row) {
    num_chunks = (phase == 0 ? params.layer.hidden : expert.width) / 64;
    scheme = phase == 0 ? expert.gate_up_scheme : expert.down_scheme;
  }
};

/// Columns of a chunk of the tokens from `slot` on, as tiles copy them.
__device__ __forceinline__ std::int64_t operand_offset(const Layer& layer, int chunk, int slot) {
  return (static_cast<std::int64_t>(chunk) * layer.max_slots() + slot) * 128;
}

/// Calls `piece(index, first chunk, number of chunks)` for the pieces of a row in the order of
/// work, segment by segment.
template <typename Piece>
__device__ __forceinline__ void for_pieces(int num_chunks, Piece piece) {
  const int pieces = num_pieces(num_chunks);
  for (int segment = 0; segment < kNumSegments; ++segment) {
    for (int i = segment; i < pieces; i += kNumSegments) {
      const int first = i * kPieceChunks;
      piece(first, min(kPieceChunks, num_chunks - first));
    }
  }
}

/// One warp: the tokens' columns of every tile.
template <int kPhase>
__device__ __forceinline__ void load_operands(const Params& params, Memory& memory) {
  const int num_tiles = params.work.num_tiles[kPhase];
  const std::byte* const operands = kPhase == 0 ? params.work.gathered : params.work.activations;
  const std::int64_t stride = operand_offset(params.layer, 1, 0);
  RingPlace<kOperandStages> ring;
  for (int index = static_cast<int>(blockIdx.x); index < num_tiles;
       index += static_cast<int>(gridDim.x)) {
    const Tile tile(params, kPhase, index);
    const auto bytes = static_cast<std::uint32_t>((tile.expert.num_tokens + 7) / 8 * 1024);
    const std::byte* const source =
        operands + operand_offset(params.layer, 0, tile.expert.first_slot);
    for_pieces(tile.num_chunks, [&](int first, int count) {
      for (int chunk = first; chunk < first + count; ++chunk) {
        const std::uint32_t full = ptx::shared_address(memory.operands_full + ring.slot);
        ptx::mbarrier_wait_parity(ptx::shared_address(memory.operands_empty + ring.slot),
                                  ring.parity ^ 1U);
        if (threadIdx.x % 32 == 0) {
          ptx::mbarrier_arrive_expect_tx(full, bytes);
          ptx::cp_async_bulk(ptx::shared_address(memory.operands[ring.slot]),
                             source + chunk * stride, bytes, full);
        }
        ring.advance();
      }
    });
  }
}

/// One warp: one warpgroup's weights of every tile, a lane each 16 rows.
template <int kPhase>
__device__ __forceinline__ void load_weights(const Params& params, Memory& memory, int group) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int num_tiles = params.work.num_tiles[kPhase];
  RingPlace<kWeightStages> ring;
  for (int index = static_cast<int>(blockIdx.x); index < num_tiles;
       index += static_cast<int>(gridDim.x)) {
    const Tile tile(params, kPhase, index);
    const ActiveExpert& expert = tile.expert;
    const auto bytes = static_cast<std::uint32_t>(chunk_bytes(tile.scheme));
    const std::int64_t tile_bytes = std::int64_t{tile.num_chunks} * bytes;
    const int half = lane % kTilesOfGroup / 4;
    const std::byte* source = nullptr;
    if (kPhase == 0) {
      const int last = expert.width / 16 - 1;
      const int at = min((tile.row * kComputeGroups + group) * 4 + lane % 4, last);
      source = (half == 0 ? expert.gate : expert.up) + at * tile_bytes;
    } else {
      const int last = params.layer.hidden / 16 - 1;
      const int at = min((tile.row * kComputeGroups + group) * 8 + half * 4 + lane % 4, last);
      source = expert.down + at * tile_bytes;
    }
    for_pieces(tile.num_chunks, [&](int first, int count) {
      for (int chunk = first; chunk < first + count; ++chunk) {
        const std::uint32_t full = ptx::shared_address(memory.weights_full[group] + ring.slot);
        ptx::mbarrier_wait_parity(ptx::shared_address(memory.weights_empty[group] + ring.slot),
                                  ring.parity ^ 1U);
        if (lane == 0) ptx::mbarrier_arrive_expect_tx(full, kTilesOfGroup * bytes);
        __syncwarp();
        if (lane < kTilesOfGroup) {
          ptx::cp_async_bulk(ptx::shared_address(memory.weights[group][ring.slot]) +
                                 static_cast<std::uint32_t>(lane) * bytes,
                             source + std::int64_t{chunk} * bytes, bytes, full);
        }
        ring.advance();
      }
    });
  }
}

}  // namespace winnow::cuda::fast_moe::tiles
