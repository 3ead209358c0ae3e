// MoE for few tokens: one persistent kernel that streams the chosen experts' weights once.
//
// Floor: the bytes of the chosen experts over the memory's bandwidth (M3.1: one token 186 MB, 43 us
// at 4.3 TB/s). So the kernel is built to keep copies in flight: a warp fills a ring in shared
// memory, across items and across the two phases; the others decode weights straight into matrix
// instructions' A registers (rows of W on M, the expert's tokens on N), never back to memory.
//
// Eight warps take the four segments (cuda_fast.h) of an item's two tiles each and add their sums
// in order through shared memory. A phase 1 item waits until its expert's activations are written,
// while its weights are already on their way. The block that finishes the last expert of 32 rows of
// y sums them.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/ptx.cuh"
#include "ops/linear/cuda_fragments.cuh"
#include "ops/moe/cuda_fast.h"
#include "ops/moe/cuda_fast_chunk.cuh"
#include "ops/moe/cuda_fast_finish.cuh"
#include "ops/moe/cuda_fast_loading.cuh"

namespace winnow::cuda::fast_moe {

/// Where a lane finds its column's values. A column without a token reads another's: its sums are
/// never looked at.
template <int kGroups>
struct Inputs {
  const std::byte* rows[kGroups];
};

__device__ __forceinline__ uint4 load_operand(const std::byte* at) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(at));
  return v;
}

/// The values of some chunks, loaded a round of the ring before they are used where registers
/// allow, else a chunk before.
template <int kGroups>
struct Operands {
  static constexpr int kChunks = kGroups == 1 ? kPieceChunks : 1;
  uint4 values[kChunks][2][kGroups];  // [half]: steps 2 · half and 2 · half + 1

  __device__ __forceinline__ void load(const Inputs<kGroups>& inputs, int place, int chunk) {
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      const std::byte* const at = inputs.rows[n] + chunk * 128;
      values[place][0][n] = load_operand(at);
      values[place][1][n] = load_operand(at + 64);
    }
  }
};

template <int kGroups>
using Sums = float[kGroups][4];

template <QuantScheme kScheme, int kGroups>
__device__ __forceinline__ void multiply_chunk(const std::byte* weights, int lane,
                                               const uint4 (&b)[2][kGroups], Sums<kGroups>& sums) {
  Chunk<kScheme> chunk;
  chunk.load(weights, lane);
  std::uint32_t a[4][4];
  chunk.template decode<0>(a[0]);
  chunk.template decode<1>(a[1]);
#pragma unroll
  for (int n = 0; n < kGroups; ++n) {
    ptx::mma_m16n8k16_bf16(sums[n], a[0], b[0][n].x, b[0][n].y);
    ptx::mma_m16n8k16_bf16(sums[n], a[1], b[0][n].z, b[0][n].w);
  }
  chunk.template decode<2>(a[2]);
  chunk.template decode<3>(a[3]);
#pragma unroll
  for (int n = 0; n < kGroups; ++n) {
    ptx::mma_m16n8k16_bf16(sums[n], a[2], b[1][n].x, b[1][n].y);
    ptx::mma_m16n8k16_bf16(sums[n], a[3], b[1][n].z, b[1][n].w);
  }
}

/// One piece of a tile: chunks [first, first + count) of the row. `operands` holds its first values
/// and then those of chunk `next`, of which the row has `next_count` more.
template <QuantScheme kScheme, int kGroups>
__device__ __forceinline__ void multiply_piece(const std::byte* weights, int first, int count,
                                               int next, int next_count, int lane,
                                               const Inputs<kGroups>& inputs,
                                               Operands<kGroups>& operands, Sums<kGroups>& sums) {
  constexpr int kBytes = static_cast<int>(chunk_bytes(kScheme));
  if constexpr (Operands<kGroups>::kChunks == kPieceChunks) {
    if (count == kPieceChunks && next_count >= kPieceChunks) {
      const std::byte* ahead[kGroups];
#pragma unroll
      for (int n = 0; n < kGroups; ++n) ahead[n] = inputs.rows[n] + next * 128;
#pragma unroll
      for (int j = 0; j < kPieceChunks; ++j) {
        multiply_chunk<kScheme, kGroups>(weights + j * kBytes, lane, operands.values[j], sums);
#pragma unroll
        for (int n = 0; n < kGroups; ++n) {
          operands.values[j][0][n] = load_operand(ahead[n] + j * 128);
          operands.values[j][1][n] = load_operand(ahead[n] + j * 128 + 64);
        }
      }
    } else {
#pragma unroll
      for (int j = 0; j < kPieceChunks; ++j) {
        if (j >= count) break;
        multiply_chunk<kScheme, kGroups>(weights + j * kBytes, lane, operands.values[j], sums);
        if (j < next_count) operands.load(inputs, j, next + j);
      }
    }
  } else {
#pragma unroll 1
    for (int j = 0; j < count; ++j) {
      multiply_chunk<kScheme, kGroups>(weights + j * kBytes, lane, operands.values[0], sums);
      if (j + 1 < count || next_count > 0) {
        operands.load(inputs, 0, j + 1 < count ? first + j + 1 : next);
      }
    }
  }
}

/// The compute warps of a block.
class Computer {
 public:
  __device__ Computer(const Params& params, DecodeMemory& memory)
      : params_(params),
        memory_(memory),
        warp_(static_cast<int>(threadIdx.x) / 32 - kFirstComputeWarp),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  /// `is_early`: the block's first item needs the inputs only.
  __device__ void run(bool is_early) {
    if (is_early) {
      wait_for_count(params_.work.counters + Workspace::kInputs,
                     static_cast<std::uint32_t>(num_route_blocks(params_.layer)));
    } else {
      ptx::griddepcontrol_wait();
    }
    while (true) {
      wait_full();
      const Item& item = memory_.items[ring_.slot];
      if (item.phase == Item::kNone) break;
      if (item.scheme == QuantScheme::kNvfp4) {
        multiply_item_of<QuantScheme::kNvfp4>(item);
      } else {
        multiply_item_of<QuantScheme::kMxfp8>(item);
      }
      // Needed once, and free from then on. A flag to skip it was kept in local memory, whose lines
      // the tokens' values drive out of L1: reading it took a fifth of the whole time.
      ptx::griddepcontrol_wait();
    }
    wait_read();
    if (warp_ == 0 && lane_ == 0) memory_.sheets[sheet_.slot].phase = Item::kNone;
    hand_over();
  }

 private:
  __device__ __forceinline__ void wait_full() const {
    ptx::mbarrier_wait_parity(ptx::shared_address(memory_.full + ring_.slot), ring_.parity);
  }
  /// Every lane has read the stage.
  __device__ __forceinline__ void release() {
    ptx::mbarrier_arrive_warp(ptx::shared_address(memory_.empty + ring_.slot), lane_);
    ring_.advance();
  }
  __device__ __forceinline__ void wait_read() const {
    ptx::mbarrier_wait_parity(ptx::shared_address(memory_.read + sheet_.slot), sheet_.parity ^ 1U);
  }
  __device__ __forceinline__ void hand_over() {
    ptx::mbarrier_arrive_warp(ptx::shared_address(memory_.written + sheet_.slot), lane_);
    sheet_.advance();
  }

  template <QuantScheme kScheme>
  __device__ __forceinline__ void multiply_item_of(const Item& item) {
    const int num_tokens = item.num_tokens;
    if (num_tokens <= 8) {
      multiply_item<kScheme, 1>(item);
    } else if (num_tokens <= 16) {
      multiply_item<kScheme, 2>(item);
    } else {
      multiply_item<kScheme, 4>(item);
    }
  }

  /// The activations of an expert are complete.
  __device__ __forceinline__ void wait_for_phase0(int entry, int width, int num_tokens) {
    if (entry == complete_entry_) return;
    complete_entry_ = entry;
    const auto target = static_cast<std::uint32_t>(width / 16 * num_groups(num_tokens));
    wait_for_count(params_.work.counters + Workspace::kEntries + entry, target);
  }

  /// `item` is gone with its stage.
  template <QuantScheme kScheme, int kGroups>
  __device__ __forceinline__ void multiply_item(const Item& item) {
    const int num_chunks = item.num_chunks;
    const int segment = warp_ % kNumSegments;
    const int tile = warp_ / kNumSegments;
    Sheet head;  // lane 0 of warp 0 writes it
    head.phase = item.phase;
    head.entry = item.entry;
    head.row = item.row;
    head.first_slot = item.first_slot;
    head.num_tokens = item.num_tokens;
    const float scale = item.scales[tile];
    Inputs<kGroups> inputs;
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      const int column = min(8 * n + lane_ / 4, head.num_tokens - 1);
      inputs.rows[n] =
          (head.phase == 0
               ? params_.work.inputs + std::int64_t{item.tokens[column]} * params_.layer.hidden * 2
               : params_.work.activations +
                     std::int64_t{head.first_slot + column} * params_.layer.max_width() * 2) +
          lane_ % 4 * 16;
    }
    if (head.phase == 1) wait_for_phase0(head.entry, item.width, head.num_tokens);

    constexpr int kBytes = static_cast<int>(chunk_bytes(kScheme));
    constexpr int kPieces = pieces_of_stage(kScheme);
    const int place = tile * kTileStageBytes + segment % kPieces * kPieceChunks * kBytes;
    Operands<kGroups> operands;
#pragma unroll
    for (int j = 0; j < Operands<kGroups>::kChunks; ++j) {
      operands.load(inputs, j, min(segment * kPieceChunks + j, num_chunks - 1));
    }
    Sums<kGroups> sums = {};
#pragma unroll 1
    for (int first_piece = 0; first_piece * kPieceChunks < num_chunks; first_piece += kPieces) {
      wait_full();
      const int piece = first_piece + segment % kPieces;
      const int first = piece * kPieceChunks;
      if (piece % kNumSegments == segment && first < num_chunks) {
        const int next = first + kNumSegments * kPieceChunks;
        multiply_piece<kScheme, kGroups>(memory_.stages[ring_.slot] + place, first,
                                         min(kPieceChunks, num_chunks - first), next,
                                         num_chunks - next, lane_, inputs, operands, sums);
      }
      release();
    }
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      if (8 * n >= head.num_tokens) break;
      wait_read();
      Sheet& sheet = memory_.sheets[sheet_.slot];
      *reinterpret_cast<float4*>(sheet.sums[segment][tile] + lane_ * 4) =
          make_float4(sums[n][0], sums[n][1], sums[n][2], sums[n][3]);
      if (segment == 0 && lane_ == 0) {
        sheet.scales[tile] = scale;
        if (tile == 0) {
          sheet.phase = head.phase;
          sheet.entry = head.entry;
          sheet.row = head.row;
          sheet.first_slot = head.first_slot + 8 * n;
          sheet.num_tokens = min(8, head.num_tokens - 8 * n);
        }
      }
      hand_over();
    }
  }

  const Params& params_;
  DecodeMemory& memory_;
  RingPlace<kStages> ring_;
  RingPlace<kSheets> sheet_;
  int warp_;
  int lane_;
  int complete_entry_ = -1;  // whose activations are known to be written
};

/// One block's work: kThreads threads; all `num_blocks` (= params.num_blocks) blocks must be
/// resident together. The routing is complete when griddepcontrol.wait returns; until then
/// Workspace::kInputs counts the blocks that have rounded their inputs.
__device__ __forceinline__ void decode_block(const Params& params, DecodeMemory& memory, int block,
                                             int num_blocks) {
  if (threadIdx.x == 0) {
    memory.num_complete_rows = 0;
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(ptx::shared_address(memory.full + i), ptx::kWarpArrivals);
      ptx::mbarrier_init(ptx::shared_address(memory.empty + i), kWarps * ptx::kWarpArrivals);
    }
    for (int i = 0; i < kSheets; ++i) {
      ptx::mbarrier_init(ptx::shared_address(memory.written + i), kWarps * ptx::kWarpArrivals);
      ptx::mbarrier_init(ptx::shared_address(memory.read + i), ptx::kWarpArrivals);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp == kLoadingWarp) {
    Loader(params, memory).run(block, num_blocks);
    return;
  }
  if (warp == kFinishingWarp) {
    Finisher(params, memory).run();
  } else {
    Computer(params, memory).run(block < Queue::num_early(params.layer));
  }
  ptx::barrier_sync(1, kFinishWarps * 32);
  combine(params, memory, warp - kFinishingWarp);
  if (warp == kFinishingWarp) leave(params, num_blocks);
}

}  // namespace winnow::cuda::fast_moe
