// What becomes of decode's sums: activations of phase 0, outputs of phase 1 and, when the last
// expert's are there, rows of y.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/ptx.cuh"
#include "ops/cuda/ring_place.cuh"
#include "ops/moe/cuda_fast.h"
#include "ops/moe/cuda_fast_expert.cuh"
#include "ops/moe/cuda_fast_loading.cuh"

namespace winnow::cuda::fast_moe {

constexpr int kFinishWarps = kWarps + 1;  // that sum rows of y: all but the loading one

/// Part of y of 32 rows, once all experts are done with them; one warp, a lane a row, kTokens
/// tokens from `first` on. Their loads are all in flight together: they come from L2.
template <int kTopK, int kTokens>
__device__ __forceinline__ void combine_tokens(const Params& params, int row, int first) {
  const Layer& layer = params.layer;
  const Workspace& work = params.work;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int column = row * 32 + lane;
  const int top_k = layer.top_k;
  // Lane t · kTopK + k holds choice k of token t.
  const int token = first + lane / kTopK;
  const bool is_pair = lane < kTokens * kTopK && token < layer.num_tokens && lane % kTopK < top_k;
  const int pair = token * top_k + lane % kTopK;
  const int slot = is_pair ? work.slot_of[pair] : 0;
  const float weight = is_pair ? work.weights[pair] : 0.0F;
  float outputs[kTokens][kTopK];
  float shared[kTokens];
  float y[kTokens];
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    const bool is_token = first + t < layer.num_tokens;
#pragma unroll
    for (int k = 0; k < kTopK; ++k) {
      const std::int64_t from = __shfl_sync(0xFFFFFFFFU, slot, t * kTopK + k);
      outputs[t][k] =
          is_token && k < top_k ? __ldcg(work.outputs + from * layer.hidden + column) : 0.0F;
    }
    const std::int64_t from = layer.num_pairs() + first + t;
    shared[t] =
        is_token && layer.has_shared() ? __ldcg(work.outputs + from * layer.hidden + column) : 0.0F;
    y[t] = is_token ? layer.y[std::int64_t{first + t} * layer.hidden + column] : 0.0F;
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    float routed = 0.0F;
#pragma unroll
    for (int k = 0; k < kTopK; ++k) {
      const float w = __shfl_sync(0xFFFFFFFFU, weight, t * kTopK + k);
      if (k < top_k) routed = fmaf(w, outputs[t][k], routed);
    }
    if (first + t < layer.num_tokens) {
      layer.y[std::int64_t{first + t} * layer.hidden + column] =
          y[t] + fmaf(layer.routed_scale, routed, shared[t]);
    }
  }
}

/// The rows that wait, `warp` of kFinishWarps its part of them.
template <int kTopK>
__device__ __forceinline__ void combine_rows(const Params& params, const DecodeMemory& memory,
                                             int warp) {
  constexpr int kTokens = 16 / kTopK;
  const int parts = (params.layer.num_tokens + kTokens - 1) / kTokens;
  for (int i = warp; i < memory.num_complete_rows * parts; i += kFinishWarps) {
    combine_tokens<kTopK, kTokens>(params, memory.complete_rows[i / parts], i % parts * kTokens);
  }
}

/// After a barrier of the warps that call it; what others wrote was acquired by the finishing warp.
__device__ __noinline__ inline void combine(const Params& params, const DecodeMemory& memory,
                                            int warp) {
  if (params.layer.top_k <= 4) {
    combine_rows<4>(params, memory, warp);
  } else {
    combine_rows<kMaxTopK>(params, memory, warp);
  }
}

/// The finishing warp of a block.
class Finisher {
 public:
  __device__ Finisher(const Params& params, DecodeMemory& memory)
      : params_(params), memory_(memory), lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ void run() {
    while (true) {
      ptx::mbarrier_wait_parity(ptx::shared_address(memory_.written + sheet_.slot), sheet_.parity);
      const Sheet& sheet = memory_.sheets[sheet_.slot];
      if (sheet.phase == Item::kNone) break;
      finish(sheet);
    }
    ptx::griddepcontrol_wait();
  }

 private:
  __device__ __forceinline__ void finish(const Sheet& sheet) {
    const Layer& layer = params_.layer;
    const int phase = sheet.phase;
    const int entry = sheet.entry;
    const int row = sheet.row;
    const int first_slot = sheet.first_slot;
    const int num_tokens = sheet.num_tokens;
    float totals[kTilesOfItem][4] = {};
#pragma unroll
    for (int segment = 0; segment < kNumSegments; ++segment) {
#pragma unroll
      for (int tile = 0; tile < kTilesOfItem; ++tile) {
        const float4 sum = *reinterpret_cast<const float4*>(sheet.sums[segment][tile] + lane_ * 4);
        totals[tile][0] += sum.x;
        totals[tile][1] += sum.y;
        totals[tile][2] += sum.z;
        totals[tile][3] += sum.w;
      }
    }
    const float scales[kTilesOfItem] = {sheet.scales[0], sheet.scales[1]};
    ptx::mbarrier_arrive_warp(ptx::shared_address(memory_.read + sheet_.slot), lane_);
    sheet_.advance();
    // Registers of the matrix instruction: rows g and g + 8, columns 2c and 2c + 1.
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int tile_row = lane_ / 4 + i / 2 * 8;
      const int column = lane_ % 4 * 2 + i % 2;
      if (column >= num_tokens) continue;
      const std::int64_t slot = first_slot + column;
      const float first = totals[0][i] * scales[0];
      const float second = totals[1][i] * scales[1];
      if (phase == 0) {
        auto* const out = reinterpret_cast<__nv_bfloat16*>(params_.work.activations);
        out[slot * layer.max_width() + operand_index(row * 16 + tile_row)] =
            __float2bfloat16_rn(activate(first, second, layer.alpha, layer.limit));
      } else {
        float* const out = params_.work.outputs + slot * layer.hidden + row * 32 + tile_row;
        out[0] = first;
        out[16] = second;
      }
    }
    __syncwarp();
    std::uint32_t* const counters = params_.work.counters;
    if (phase == 0) {
      if (lane_ == 0) add_release(counters + Workspace::kEntries + entry);
      return;
    }
    if (num_groups_ == 0) {
      ptx::griddepcontrol_wait();
      num_groups_ = params_.work.num_active[1];
    }
    std::uint32_t ticket = 0;
    if (lane_ == 0) ticket = add_release(counters + Workspace::kRows + row);
    ticket = __shfl_sync(0xFFFFFFFFU, ticket, 0);
    if (ticket + 1 != static_cast<std::uint32_t>(num_groups_)) return;
    if (lane_ == 0) {
      counters[Workspace::kRows + row] = 0;
      memory_.complete_rows[memory_.num_complete_rows] = row;
      ++memory_.num_complete_rows;
    }
    __threadfence();
    // Most rows are complete at the very end, when all warps have time for them.
    __syncwarp();
    if (memory_.num_complete_rows == kMaxCompleteRows) {
      for (int warp = 0; warp < kFinishWarps; ++warp) combine(params_, memory_, warp);
      __syncwarp();
      if (lane_ == 0) memory_.num_complete_rows = 0;
    }
  }

  const Params& params_;
  DecodeMemory& memory_;
  RingPlace<kSheets> sheet_;
  int lane_;
  int num_groups_ = 0;  // of all experts' tokens
};

/// One warp; the last block to leave clears the counters.
__device__ inline void leave(const Params& params, int num_blocks) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  std::uint32_t* const counters = params.work.counters;
  std::uint32_t exits = 0;
  if (lane == 0) exits = atomicAdd(counters + Workspace::kExitTicket, 1U);
  exits = __shfl_sync(0xFFFFFFFFU, exits, 0);
  if (exits + 1 != static_cast<std::uint32_t>(num_blocks)) return;
  for (int i = lane; i < params.work.num_active[0]; i += 32) counters[Workspace::kEntries + i] = 0;
  if (lane == 0) {
    counters[Workspace::kExitTicket] = 0;
    counters[Workspace::kQueue] = 0;
    counters[Workspace::kInputs] = 0;
  }
}

}  // namespace winnow::cuda::fast_moe
