// MoE for many tokens: grouped products by wgmma, weights decoded from NVFP4 or MXFP8 on their way
// into the A registers, tokens gathered through the sort.
//
// Floor: 2 · 3 · 6144 · 3072 flops a token and expert (M3.1, 8192 tokens: 4.64 TFLOP, 5.8 ms at the
// 800 TFLOP/s that bf16 reaches). One k-step of a 64 × 128 tile keeps the tensor cores busy for 64
// clocks and costs a warp about 25 instructions of decoding, which two warpgroups overlap.
//
// A block is a loading warp and two warpgroups that compute, each 128 rows of weights (64 of gate
// and the same 64 of up, or 128 of down) by up to 128 tokens of one expert. Per chunk of 64 columns
// the loader copies the tokens' columns, which lie in memory as wgmma reads them, and the tiles'
// packed chunks; the others decode and multiply. Sums of a segment (cuda_fast.h) are added to
// totals that wait in shared memory, which keeps decode's order of addition.
#include <cuda_bf16.h>

#include "ops/cuda/check.h"
#include "ops/cuda/ptx.cuh"
#include "ops/cuda/ptx_sm90.cuh"
#include "ops/cuda/ring_place.cuh"
#include "ops/cuda/wgmma_bf16.cuh"
#include "ops/linear/cuda_fragments.cuh"
#include "ops/moe/cuda_fast.h"
#include "ops/moe/cuda_fast_expert.cuh"

namespace winnow::cuda::fast_moe {
namespace {

constexpr int kGroupThreads = 128;
constexpr int kComputeGroups = 2;
constexpr int kThreads = (kComputeGroups + 1) * kGroupThreads;
constexpr int kTilesOfGroup = 8;  // 16-row tiles of weights a warpgroup multiplies
constexpr int kStages = 3;
constexpr int kOperandBytes = kPrefillTokens * 128;
constexpr int kWeightBytes =
    kComputeGroups * kTilesOfGroup * static_cast<int>(chunk_bytes(QuantScheme::kMxfp8));
constexpr int kTotalBytes = kComputeGroups * kGroupThreads * kPrefillTokens * 4;
constexpr int kSharedBytes = 1024 + kTotalBytes + kStages * (kOperandBytes + kWeightBytes);
static_assert(kSharedBytes + 128 <= 227 * 1024);
constexpr int kRowsOfGroup = 64;  // of one of the two halves

struct Params {
  Layer layer;
  Workspace work;
};

struct Barriers {
  std::uint64_t full[kStages];
  std::uint64_t empty[kStages];
};

using Ring = RingPlace<kStages>;

/// Operands of all stages, then weights of all stages.
__device__ __forceinline__ std::byte* operand_stage(std::byte* stages, int slot) {
  return stages + slot * kOperandBytes;
}
__device__ __forceinline__ std::byte* weight_stage(std::byte* stages, int slot) {
  return stages + kStages * kOperandBytes + slot * kWeightBytes;
}

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

/// One warp: the chunks of every tile, segment by segment.
template <int kPhase>
__device__ __forceinline__ void load_tiles(const Params& params, std::byte* stages,
                                           Barriers& barriers) {
  constexpr int kWeightLanes = kComputeGroups * kTilesOfGroup;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int num_tiles = params.work.num_tiles[kPhase];
  const std::byte* const operands = kPhase == 0 ? params.work.gathered : params.work.activations;
  Ring ring;
  for (int index = static_cast<int>(blockIdx.x); index < num_tiles;
       index += static_cast<int>(gridDim.x)) {
    const Tile tile(params, kPhase, index);
    const ActiveExpert& expert = tile.expert;
    const auto chunk_size = static_cast<std::uint32_t>(chunk_bytes(tile.scheme));
    const auto operand_bytes = static_cast<std::uint32_t>((expert.num_tokens + 7) / 8 * 1024);
    const int first_slot = expert.first_slot;
    // Lanes 0 to 15 copy a 16-row tile of weights each, the next one the tokens' columns.
    const std::byte* source = operands + operand_offset(params.layer, 0, first_slot);
    std::int64_t stride = operand_offset(params.layer, 1, 0);
    std::uint32_t bytes = operand_bytes;
    if (lane < kWeightLanes) {
      const std::int64_t tile_bytes = static_cast<std::int64_t>(tile.num_chunks) * chunk_size;
      const int group = lane / kTilesOfGroup;
      const int half = lane % kTilesOfGroup / 4;
      if (kPhase == 0) {
        const int last = expert.width / 16 - 1;
        const int at = min((tile.row * kComputeGroups + group) * 4 + lane % 4, last);
        source = (half == 0 ? expert.gate : expert.up) + at * tile_bytes;
      } else {
        const int last = params.layer.hidden / 16 - 1;
        const int at = min((tile.row * kComputeGroups + group) * 8 + half * 4 + lane % 4, last);
        source = expert.down + at * tile_bytes;
      }
      stride = chunk_size;
      bytes = chunk_size;
    }
    const int pieces = num_pieces(tile.num_chunks);
    for (int segment = 0; segment < kNumSegments; ++segment) {
      for (int piece = segment; piece < pieces; piece += kNumSegments) {
        const int end = min(tile.num_chunks, (piece + 1) * kPieceChunks);
        for (int chunk = piece * kPieceChunks; chunk < end; ++chunk) {
          const std::uint32_t full = ptx::shared_address(&barriers.full[ring.slot]);
          ptx::mbarrier_wait_parity(ptx::shared_address(&barriers.empty[ring.slot]),
                                    ring.parity ^ 1U);
          if (lane == 0) {
            ptx::mbarrier_arrive_expect_tx(full, kWeightLanes * chunk_size + operand_bytes);
          }
          __syncwarp();
          if (lane <= kWeightLanes) {
            const std::byte* const target = lane < kWeightLanes
                                                ? weight_stage(stages, ring.slot) +
                                                      static_cast<std::uint32_t>(lane) * chunk_size
                                                : operand_stage(stages, ring.slot);
            ptx::cp_async_bulk(ptx::shared_address(target), source + chunk * stride, bytes, full);
          }
          ring.advance();
        }
      }
    }
  }
}

/// A lane's piece of one chunk of a 16-row tile, decoded a k-step at a time.
template <QuantScheme kScheme>
struct Chunk;

template <>
struct Chunk<QuantScheme::kNvfp4> {
  uint4 words;
  Nvfp4RowScales top;
  Nvfp4RowScales bottom;

  __device__ __forceinline__ void load(const std::byte* chunk, int lane) {
    words = *reinterpret_cast<const uint4*>(chunk + lane * 16);
    const uint2 scales = *reinterpret_cast<const uint2*>(chunk + 512 + lane / 4 * 8);
    top = decode_nvfp4_scales(scales.x);
    bottom = decode_nvfp4_scales(scales.y);
  }
  template <int kStep>
  __device__ __forceinline__ void decode(std::uint32_t (&a)[4]) const {
    const std::uint32_t word = kStep == 0   ? words.x
                               : kStep == 1 ? words.y
                               : kStep == 2 ? words.z
                                            : words.w;
    nvfp4_fragment<kStep>(word, top, bottom, a);
  }
};

template <>
struct Chunk<QuantScheme::kMxfp8> {
  uint4 words[2];
  std::uint32_t scales;

  __device__ __forceinline__ void load(const std::byte* chunk, int lane) {
    words[0] = *reinterpret_cast<const uint4*>(chunk + lane * 16);
    words[1] = *reinterpret_cast<const uint4*>(chunk + 512 + lane * 16);
    scales = *reinterpret_cast<const std::uint32_t*>(chunk + 1024 + lane / 4 * 4);
  }
  template <int kStep>
  __device__ __forceinline__ void decode(std::uint32_t (&a)[4]) const {
    const uint4& half = words[kStep / 2];
    mxfp8_fragment(kStep % 2 == 0 ? half.x : half.z, kStep % 2 == 0 ? half.y : half.w,
                   decode_mxfp8_scale<kStep / 2>(scales), decode_mxfp8_scale<2 + kStep / 2>(scales),
                   a);
  }
};

/// Accumulators of both halves of a warpgroup's rows; one variable for every number of tokens, or
/// the compiler keeps several alive and runs out of registers.
using Sums = float[2][kPrefillTokens / 2];

/// One warpgroup's side of its place in the block.
struct Compute {
  std::byte* stages;
  Barriers* barriers;
  float4* totals;  // this thread's: [i][thread of the group]
  int group;
  int warp;  // of the group
  int lane;
  Ring ring;

  __device__ __forceinline__ void release(int slot) const {
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(ptx::shared_address(&barriers->empty[slot]));
  }
};

template <QuantScheme kScheme, int kStep, int kTokens>
__device__ __forceinline__ void multiply_step(const Chunk<kScheme>& first,
                                              const Chunk<kScheme>& second,
                                              std::uint32_t (&a)[4][2][4], std::uint64_t operand,
                                              bool accumulates, Sums& sums) {
  first.template decode<kStep>(a[kStep][0]);
  second.template decode<kStep>(a[kStep][1]);
  ptx::wgmma_fence();
  Wgmma<kTokens>::run(sums[0], a[kStep][0], operand + 2 * kStep, accumulates);
  Wgmma<kTokens>::run(sums[1], a[kStep][1], operand + 2 * kStep, accumulates);
  ptx::wgmma_commit_group();
}

/// sums = the products of chunks [0, count) that follow in the ring.
template <QuantScheme kScheme, int kTokens>
__device__ __forceinline__ void multiply_segment(Compute& compute, int count, Sums& sums) {
  constexpr auto kBytes = static_cast<int>(chunk_bytes(kScheme));
  std::uint32_t a[4][2][4];
  for (int chunk = 0; chunk < count; ++chunk) {
    ptx::mbarrier_wait_parity(ptx::shared_address(&compute.barriers->full[compute.ring.slot]),
                              compute.ring.parity);
    const std::byte* const weights = weight_stage(compute.stages, compute.ring.slot) +
                                     (compute.group * kTilesOfGroup + compute.warp) * kBytes;
    Chunk<kScheme> first;
    Chunk<kScheme> second;
    first.load(weights, compute.lane);
    second.load(weights + 4 * kBytes, compute.lane);
    const std::uint64_t operand = ptx::swizzled_descriptor(
        ptx::shared_address(operand_stage(compute.stages, compute.ring.slot)), 1024);
    multiply_step<kScheme, 0, kTokens>(first, second, a, operand, chunk > 0, sums);
    multiply_step<kScheme, 1, kTokens>(first, second, a, operand, true, sums);
    multiply_step<kScheme, 2, kTokens>(first, second, a, operand, true, sums);
    multiply_step<kScheme, 3, kTokens>(first, second, a, operand, true, sums);
    ptx::wgmma_wait_group<0>();
    compute.release(compute.ring.slot);
    compute.ring.advance();
  }
}

/// sums = the finished products of one tile.
template <QuantScheme kScheme, int kTokens>
__device__ __forceinline__ void multiply_tile(Compute& compute, int num_chunks, Sums& sums) {
  const int pieces = num_pieces(num_chunks);
  const int num_segments = min(kNumSegments, pieces);
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
      if (!is_first) total = compute.totals[i * kGroupThreads];
      sum[0] += total.x;
      sum[1] += total.y;
      sum[2] += total.z;
      sum[3] += total.w;
      if (!is_last) {
        compute.totals[i * kGroupThreads] = make_float4(sum[0], sum[1], sum[2], sum[3]);
      }
    }
  }
}

/// SwiGLU, through this group's part of the totals: a chunk of the activations, as phase 1 copies
/// it.
template <int kTokens>
__device__ __forceinline__ void store_activations(const Params& params, const Tile& tile,
                                                  const Compute& compute, std::byte* room,
                                                  const Sums& sums) {
  const Layer& layer = params.layer;
  const ActiveExpert& expert = tile.expert;
  const int g = compute.lane / 4;
  const int c = compute.lane % 4;
  const float gate_scale = expert.gate_scale;
  const float up_scale = expert.up_scale;
  ptx::bar_sync(compute.group + 1, kGroupThreads);  // every thread has read its totals
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

template <int kTokens>
__device__ __forceinline__ void store_outputs(const Params& params, const Tile& tile,
                                              const Compute& compute, const Sums& sums) {
  const Layer& layer = params.layer;
  const ActiveExpert& expert = tile.expert;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int first_row = ((tile.row * kComputeGroups + compute.group) * 2 + half) * kRowsOfGroup;
    if (first_row >= layer.hidden) break;
    float* const out = params.work.outputs + std::int64_t{expert.first_slot} * layer.hidden +
                       first_row + compute.warp * 16 + compute.lane / 4;
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int t = 8 * j + compute.lane % 4 * 2 + i % 2;
        if (t < expert.num_tokens) {
          out[std::int64_t{t} * layer.hidden + i / 2 * 8] =
              sums[half][4 * j + i] * expert.down_scale;
        }
      }
    }
  }
}

template <int kPhase, QuantScheme kScheme, int kTokens>
__device__ __forceinline__ void run_tile(const Params& params, const Tile& tile, Compute& compute,
                                         std::byte* room, Sums& sums) {
  multiply_tile<kScheme, kTokens>(compute, tile.num_chunks, sums);
  if constexpr (kPhase == 0) {
    store_activations<kTokens>(params, tile, compute, room, sums);
  } else {
    store_outputs<kTokens>(params, tile, compute, sums);
  }
}

template <int kPhase, QuantScheme kScheme>
__device__ __forceinline__ void run_tile_of(const Params& params, const Tile& tile,
                                            Compute& compute, std::byte* room, Sums& sums) {
  if (tile.expert.num_tokens > 96) {
    run_tile<kPhase, kScheme, 128>(params, tile, compute, room, sums);
  } else if (tile.expert.num_tokens > 64) {
    run_tile<kPhase, kScheme, 96>(params, tile, compute, room, sums);
  } else if (tile.expert.num_tokens > 32) {
    run_tile<kPhase, kScheme, 64>(params, tile, compute, room, sums);
  } else {
    run_tile<kPhase, kScheme, 32>(params, tile, compute, room, sums);
  }
}

/// Phase 0: activations = SwiGLU(gate, up); phase 1: outputs = down · activations.
template <int kPhase>
__global__ void __launch_bounds__(kThreads, 1) moe_prefill(const __grid_constant__ Params params) {
  extern __shared__ std::byte unaligned[];
  __shared__ Barriers barriers;
  std::byte* const shared = unaligned + (1024U - ptx::shared_address(unaligned) % 1024U) % 1024U;
  std::byte* const stages = shared + kTotalBytes;
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(ptx::shared_address(&barriers.full[i]), 1);
      ptx::mbarrier_init(ptx::shared_address(&barriers.empty[i]), kComputeGroups * 4);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  if (group == kComputeGroups) {
    ptx::setmaxnreg_dec<40>();
    if (threadIdx.x % kGroupThreads < 32) load_tiles<kPhase>(params, stages, barriers);
  } else {
    ptx::setmaxnreg_inc<232>();
    const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
    std::byte* const room = shared + group * (kTotalBytes / kComputeGroups);
    Compute compute{.stages = stages,
                    .barriers = &barriers,
                    .totals = reinterpret_cast<float4*>(room) + thread,
                    .group = group,
                    .warp = thread / 32,
                    .lane = thread % 32,
                    .ring = {}};
    Sums sums = {};
    const int num_tiles = params.work.num_tiles[kPhase];
    for (int index = static_cast<int>(blockIdx.x); index < num_tiles;
         index += static_cast<int>(gridDim.x)) {
      const Tile tile(params, kPhase, index);
      if (tile.scheme == QuantScheme::kNvfp4) {
        run_tile_of<kPhase, QuantScheme::kNvfp4>(params, tile, compute, room, sums);
      } else {
        run_tile_of<kPhase, QuantScheme::kMxfp8>(params, tile, compute, room, sums);
      }
    }
  }
}

/// y += routed_scale · Σ weight · output + shared. A block a token, four columns a thread.
__global__ void __launch_bounds__(256) combine(const __grid_constant__ Params params) {
  const Layer& layer = params.layer;
  const Workspace& work = params.work;
  const auto t = static_cast<std::int64_t>(blockIdx.x);
  const float* rows[kMaxTopK];
  float weights[kMaxTopK];
#pragma unroll
  for (int k = 0; k < kMaxTopK; ++k) {
    if (k >= layer.top_k) break;
    rows[k] = work.outputs + std::int64_t{work.slot_of[t * layer.top_k + k]} * layer.hidden;
    weights[k] = work.weights[t * layer.top_k + k];
  }
  const float* const shared =
      work.outputs + (layer.has_shared() ? *work.shared_slot + t : 0) * layer.hidden;
  for (int column = static_cast<int>(threadIdx.x) * 4; column < layer.hidden; column += 1024) {
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
    auto* const y = reinterpret_cast<float4*>(layer.y + t * layer.hidden + column);
    float4 out = *y;
    out.x += fmaf(layer.routed_scale, routed.x, x.x);
    out.y += fmaf(layer.routed_scale, routed.y, x.y);
    out.z += fmaf(layer.routed_scale, routed.z, x.z);
    out.w += fmaf(layer.routed_scale, routed.w, x.w);
    *y = out;
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

void prefill(const Layer& layer, const Workspace& work, int num_multiprocessors,
             cudaStream_t stream) {
  const Params params{layer, work};
  launch_phase<0>(params, num_multiprocessors, stream);
  launch_phase<1>(params, num_multiprocessors, stream);
  combine<<<static_cast<unsigned>(layer.num_tokens), 256, 0, stream>>>(params);
  check_launch("combine");
}

}  // namespace winnow::cuda::fast_moe
