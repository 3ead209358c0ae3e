// MoE for many tokens: grouped products by wgmma, weights decoded from NVFP4 or MXFP8 on their way
// into the A registers, tokens gathered through the sort.
//
// Floor: 2 · 3 · 6144 · 3072 flops a token and expert (M3.1, 8192 tokens: 4.64 TFLOP, 5.8 ms at the
// 800 TFLOP/s that bf16 reaches). One k-step of a 64 × 128 tile keeps the tensor cores busy for 64
// clocks and costs a warp about 25 instructions of decoding, which two warpgroups overlap.
//
// A block is three loading warps and two warpgroups that compute, each 128 rows of weights (64 of
// gate and the same 64 of up, or 128 of down) by up to 128 tokens of one expert. One warp copies
// the tokens' columns, which lie in memory as wgmma reads them, a chunk of 64 at a time for both
// warpgroups; one for each warpgroup its tiles' packed chunks. Sums of a segment are added to
// totals that wait in shared memory, which keeps decode's order of addition.
#include <cuda_bf16.h>

#include <type_traits>

#include "ops/cuda/check.h"
#include "ops/cuda/ptx.cuh"
#include "ops/cuda/ptx_sm90.cuh"
#include "ops/cuda/wgmma_bf16.cuh"
#include "ops/linear/cuda_fragments.cuh"
#include "ops/moe/cuda_fast.h"
#include "ops/moe/cuda_fast_chunk.cuh"
#include "ops/moe/cuda_fast_expert.cuh"
#include "ops/moe/cuda_fast_prefill_loading.cuh"

namespace winnow::cuda::fast_moe {
namespace tiles {
namespace {

/// Accumulators of both halves of a warpgroup's rows; one variable for every number of tokens, or
/// the compiler keeps several alive and runs out of registers.
using Sums = float[2][kPrefillTokens / 2];

/// One warpgroup's side of its place in the block.
struct Compute {
  Memory& memory;
  int group;
  int warp;  // of the group
  int lane;
  RingPlace<kOperandStages> operands;
  RingPlace<kWeightStages> weights;

  __device__ __forceinline__ void release(std::uint64_t& empty) const {
    ptx::mbarrier_arrive_warp(ptx::shared_address(&empty), lane);
  }
};

/// Submits k-step kStep of a chunk, the kNumber-th since the tensor cores were idle. They have the
/// one before to work on while this one is decoded.
template <QuantScheme kScheme, int kNumber, int kTokens>
__device__ __forceinline__ void multiply_step(const Chunk<kScheme>& first,
                                              const Chunk<kScheme>& second,
                                              std::uint32_t (&a)[2][2][4], std::uint64_t operand,
                                              bool accumulates, Sums& sums) {
  constexpr int kStep = kNumber % 4;
  if constexpr (kNumber >= 2) ptx::wgmma_wait_group<1>();  // its registers are free
  first.template decode<kStep>(a[kStep % 2][0]);
  second.template decode<kStep>(a[kStep % 2][1]);
  ptx::wgmma_fence();
  Wgmma<kTokens>::run(sums[0], a[kStep % 2][0], operand + 2 * kStep, accumulates);
  Wgmma<kTokens>::run(sums[1], a[kStep % 2][1], operand + 2 * kStep, accumulates);
  ptx::wgmma_commit_group();
}

/// The next kCount chunks in the rings.
template <QuantScheme kScheme, int kTokens, int kCount>
__device__ __forceinline__ void multiply_chunks(Compute& compute, bool accumulates, Sums& sums) {
  constexpr auto kBytes = static_cast<int>(chunk_bytes(kScheme));
  Memory& memory = compute.memory;
  std::uint32_t a[2][2][4];
  int before = 0;  // operand slot of the chunk before
  const auto multiply = [&](auto number) {
    constexpr int kChunk = decltype(number)::value;
    const int slot = compute.operands.slot;
    ptx::mbarrier_wait_parity(
        ptx::shared_address(memory.weights_full[compute.group] + compute.weights.slot),
        compute.weights.parity);
    const std::byte* const weights =
        memory.weights[compute.group][compute.weights.slot] + compute.warp * kBytes;
    Chunk<kScheme> first;
    Chunk<kScheme> second;
    first.load(weights, compute.lane);
    second.load(weights + 4 * kBytes, compute.lane);
    ptx::mbarrier_wait_parity(ptx::shared_address(memory.operands_full + slot),
                              compute.operands.parity);
    const std::uint64_t operand =
        ptx::swizzled_descriptor(ptx::shared_address(memory.operands[slot]), 1024);
    multiply_step<kScheme, 4 * kChunk, kTokens>(first, second, a, operand,
                                                kChunk > 0 || accumulates, sums);
    multiply_step<kScheme, 4 * kChunk + 1, kTokens>(first, second, a, operand, true, sums);
    if constexpr (kChunk > 0) compute.release(memory.operands_empty[before]);
    multiply_step<kScheme, 4 * kChunk + 2, kTokens>(first, second, a, operand, true, sums);
    multiply_step<kScheme, 4 * kChunk + 3, kTokens>(first, second, a, operand, true, sums);
    compute.release(memory.weights_empty[compute.group][compute.weights.slot]);
    compute.weights.advance();
    before = slot;
    compute.operands.advance();
  };
  multiply(std::integral_constant<int, 0>{});
  if constexpr (kCount > 1) multiply(std::integral_constant<int, 1>{});
  if constexpr (kCount > 2) multiply(std::integral_constant<int, 2>{});
  ptx::wgmma_wait_group<0>();
  compute.release(memory.operands_empty[before]);
}

/// sums = the products of the next `count` chunks in the rings.
template <QuantScheme kScheme, int kTokens>
__device__ __forceinline__ void multiply_segment(Compute& compute, int count, Sums& sums) {
  int chunk = 0;
  for (; chunk + kPieceChunks <= count; chunk += kPieceChunks) {
    multiply_chunks<kScheme, kTokens, kPieceChunks>(compute, chunk > 0, sums);
  }
  for (; chunk < count; ++chunk) multiply_chunks<kScheme, kTokens, 1>(compute, chunk > 0, sums);
}

/// sums = the finished products of one tile.
template <QuantScheme kScheme, int kTokens>
__device__ __forceinline__ void multiply_tile(Compute& compute, int num_chunks, Sums& sums) {
  const int pieces = num_pieces(num_chunks);
  const int num_segments = min(kNumSegments, pieces);
  auto& shared = compute.memory.totals[compute.group].sums;
  const int thread = compute.warp * 32 + compute.lane;
  float held[kHeldTotals * 4];
#pragma unroll 1
  for (int segment = 0; segment < num_segments; ++segment) {
    // Whole pieces, of which the row's last may be shorter.
    int count = (pieces - segment + kNumSegments - 1) / kNumSegments * kPieceChunks;
    if ((pieces - 1) % kNumSegments == segment) count -= pieces * kPieceChunks - num_chunks;
    multiply_segment<kScheme, kTokens>(compute, count, sums);
    const bool is_first = segment == 0;
    const bool is_last = segment + 1 == num_segments;
#pragma unroll
    for (int i = 0; i < kTokens / 4; ++i) {
      float* const sum = &sums[i / (kTokens / 8)][i % (kTokens / 8) * 4];
      float4 total = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
      if (i < kHeldTotals) {
        if (!is_first)
          total = make_float4(held[4 * i], held[4 * i + 1], held[4 * i + 2], held[4 * i + 3]);
      } else if (!is_first) {
        total = shared[i - kHeldTotals][thread];
      }
      sum[0] += total.x;
      sum[1] += total.y;
      sum[2] += total.z;
      sum[3] += total.w;
      if (i < kHeldTotals) {
        held[4 * i] = sum[0];
        held[4 * i + 1] = sum[1];
        held[4 * i + 2] = sum[2];
        held[4 * i + 3] = sum[3];
      } else if (!is_last) {
        shared[i - kHeldTotals][thread] = make_float4(sum[0], sum[1], sum[2], sum[3]);
      }
    }
  }
}

/// SwiGLU: a chunk of the activations, as phase 1 copies it.
template <int kTokens>
__device__ __forceinline__ void store_activations(const Params& params, const Tile& tile,
                                                  const Compute& compute, const Sums& sums) {
  std::byte* const room = compute.memory.totals[compute.group].activations;
  const Layer& layer = params.layer;
  const ActiveExpert& expert = tile.expert;
  const int g = compute.lane / 4;
  const int c = compute.lane % 4;
  const float gate_scale = expert.gate_scale;
  const float up_scale = expert.up_scale;
  ptx::bar_sync(compute.group + 1,
                kGroupThreads);  // every thread has read its totals
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float gate = sums[0][4 * j + i] * gate_scale;
      const float up = sums[1][4 * j + i] * up_scale;
      const int t = 8 * j + 2 * c + i % 2;
      const int piece = compute.warp * 2 + i / 2;  // of 8 rows of weights, columns of the chunk
      *reinterpret_cast<__nv_bfloat16*>(room + t * 128 + (piece ^ (2 * c + i % 2)) * 16 + g * 2) =
          __float2bfloat16_rn(activate(gate, up, layer.alpha, layer.limit));
    }
  }
  ptx::bar_sync(compute.group + 1, kGroupThreads);
  const int thread = compute.warp * 32 + compute.lane;
  const int chunk = tile.row * kComputeGroups + compute.group;
  if (chunk * kRowsOfGroup < expert.width) {
    std::byte* const out =
        params.work.activations + operand_offset(layer, chunk, expert.first_slot);
    const int bytes = (expert.num_tokens + 7) / 8 * 1024;
    for (int i = thread * 16; i < bytes; i += kGroupThreads * 16) {
      *reinterpret_cast<uint4*>(out + i) = *reinterpret_cast<const uint4*>(room + i);
    }
  }
  ptx::bar_sync(compute.group + 1, kGroupThreads);
}

/// A warp writes whole lines: see output_row().
template <int kTokens>
__device__ __forceinline__ void store_outputs(const Params& params, const Tile& tile,
                                              const Compute& compute, const Sums& sums) {
  const Layer& layer = params.layer;
  const ActiveExpert& expert = tile.expert;
  const int first_row = (tile.row * kComputeGroups + compute.group) * kOutputRows;
  if (first_row >= layer.hidden) return;
  const std::int64_t stride = output_columns(layer);
  float* const out = params.work.outputs + expert.first_slot * stride + first_row +
                     (compute.warp * 8 + compute.lane / 4) * 4;
  const float scale = expert.down_scale;
#pragma unroll
  for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int t = 8 * j + compute.lane % 4 * 2 + i;
      if (t < expert.num_tokens) {
        *reinterpret_cast<float4*>(out + t * stride) =
            make_float4(sums[0][4 * j + i] * scale, sums[0][4 * j + i + 2] * scale,
                        sums[1][4 * j + i] * scale, sums[1][4 * j + i + 2] * scale);
      }
    }
  }
}

template <int kPhase, QuantScheme kScheme, int kTokens>
__device__ __forceinline__ void run_tile(const Params& params, const Tile& tile, Compute& compute,
                                         Sums& sums) {
  multiply_tile<kScheme, kTokens>(compute, tile.num_chunks, sums);
  if constexpr (kPhase == 0) {
    store_activations<kTokens>(params, tile, compute, sums);
  } else {
    store_outputs<kTokens>(params, tile, compute, sums);
  }
}

template <int kPhase, QuantScheme kScheme>
__device__ __forceinline__ void run_tile_of(const Params& params, const Tile& tile,
                                            Compute& compute, Sums& sums) {
  if (tile.expert.num_tokens > 96) {
    run_tile<kPhase, kScheme, 128>(params, tile, compute, sums);
  } else if (tile.expert.num_tokens > 64) {
    run_tile<kPhase, kScheme, 96>(params, tile, compute, sums);
  } else if (tile.expert.num_tokens > 32) {
    run_tile<kPhase, kScheme, 64>(params, tile, compute, sums);
  } else {
    run_tile<kPhase, kScheme, 32>(params, tile, compute, sums);
  }
}

/// Phase 0: activations = SwiGLU(gate, up); phase 1: outputs = down · activations.
template <int kPhase>
__global__ void __launch_bounds__(kThreads, 1) moe_prefill(const __grid_constant__ Params params) {
  extern __shared__ std::byte unaligned[];
  auto& memory = *reinterpret_cast<Memory*>(
      unaligned + (1024U - ptx::shared_address(unaligned) % 1024U) % 1024U);
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kOperandStages; ++i) {
      ptx::mbarrier_init(ptx::shared_address(memory.operands_full + i), 1);
      ptx::mbarrier_init(ptx::shared_address(memory.operands_empty + i),
                         kComputeGroups * 4 * ptx::kWarpArrivals);
    }
    for (int g = 0; g < kComputeGroups; ++g) {
      for (int i = 0; i < kWeightStages; ++i) {
        ptx::mbarrier_init(ptx::shared_address(memory.weights_full[g] + i), 1);
        ptx::mbarrier_init(ptx::shared_address(memory.weights_empty[g] + i),
                           4 * ptx::kWarpArrivals);
      }
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (group == kComputeGroups) {
    ptx::setmaxnreg_dec<40>();
    if (thread / 32 < kComputeGroups) load_weights<kPhase>(params, memory, thread / 32);
    if (thread / 32 == kComputeGroups) load_operands<kPhase>(params, memory);
  } else {
    ptx::setmaxnreg_inc<232>();
    Compute compute{.memory = memory,
                    .group = group,
                    .warp = thread / 32,
                    .lane = thread % 32,
                    .operands = {},
                    .weights = {}};
    Sums sums = {};
    const int num_tiles = params.work.num_tiles[kPhase];
    for (int index = static_cast<int>(blockIdx.x); index < num_tiles;
         index += static_cast<int>(gridDim.x)) {
      const Tile tile(params, kPhase, index);
      if (tile.scheme == QuantScheme::kNvfp4) {
        run_tile_of<kPhase, QuantScheme::kNvfp4>(params, tile, compute, sums);
      } else {
        run_tile_of<kPhase, QuantScheme::kMxfp8>(params, tile, compute, sums);
      }
    }
  }
}

/// y += routed_scale · Σ weight · output + shared. A block a token, four rows a thread.
__global__ void __launch_bounds__(256) combine(const __grid_constant__ Params params) {
  const Layer& layer = params.layer;
  const Workspace& work = params.work;
  const auto t = static_cast<std::int64_t>(blockIdx.x);
  const std::int64_t stride = output_columns(layer);
  const float* rows[kMaxTopK];
  float weights[kMaxTopK];
#pragma unroll
  for (int k = 0; k < kMaxTopK; ++k) {
    if (k >= layer.top_k) break;
    rows[k] = work.outputs + work.slot_of[t * layer.top_k + k] * stride;
    weights[k] = work.weights[t * layer.top_k + k];
  }
  const float* const shared =
      work.outputs + (layer.has_shared() ? *work.shared_slot + t : 0) * stride;
  float* const y = layer.y + t * layer.hidden;
  for (int column = static_cast<int>(threadIdx.x) * 4; column < stride; column += 1024) {
    float4 routed = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
#pragma unroll
    for (int k = 0; k < kMaxTopK; ++k) {
      if (k >= layer.top_k) break;
      const float4 x = __ldcs(reinterpret_cast<const float4*>(rows[k] + column));
      routed.x = fmaf(weights[k], x.x, routed.x);
      routed.y = fmaf(weights[k], x.y, routed.y);
      routed.z = fmaf(weights[k], x.z, routed.z);
      routed.w = fmaf(weights[k], x.w, routed.w);
    }
    float4 x = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
    if (layer.has_shared()) x = __ldcs(reinterpret_cast<const float4*>(shared + column));
    const int row = output_row(column);
    y[row] += fmaf(layer.routed_scale, routed.x, x.x);
    y[row + 8] += fmaf(layer.routed_scale, routed.y, x.y);
    if (row + 64 < layer.hidden) {
      y[row + 64] += fmaf(layer.routed_scale, routed.z, x.z);
      y[row + 72] += fmaf(layer.routed_scale, routed.w, x.w);
    }
  }
}

template <int kPhase>
void launch_phase(const Params& params, int num_blocks, cudaStream_t stream) {
  static const cudaError_t kConfigured = cudaFuncSetAttribute(
      moe_prefill<kPhase>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  check(kConfigured, "cudaFuncSetAttribute");
  moe_prefill<kPhase>
      <<<static_cast<unsigned>(num_blocks), kThreads, kSharedBytes, stream>>>(params);
  check_launch("moe_prefill");
}

}  // namespace
}  // namespace tiles

void prefill(const Layer& layer, const Workspace& work, int num_multiprocessors,
             cudaStream_t stream) {
  const tiles::Params params{layer, work};
  tiles::launch_phase<0>(params, num_multiprocessors, stream);
  tiles::launch_phase<1>(params, num_multiprocessors, stream);
  tiles::combine<<<static_cast<unsigned>(layer.num_tokens), 256, 0, stream>>>(params);
  check_launch("combine");
}

}  // namespace winnow::cuda::fast_moe
