// MoE for few tokens: one persistent kernel that streams the chosen experts' weights once.
//
// Floor: the bytes of the chosen experts over the memory's bandwidth (M3.1: one token 186 MB, 43 us
// at 4.3 TB/s). So the kernel is built to keep copies in flight: each warp owns a ring in shared
// memory that the copy engine fills up to kStages pieces ahead, across items and across the two
// phases; weights are decoded straight into matrix instructions' A registers (rows of W on M, the
// expert's tokens on N), never back to memory.
//
// An item is a pair of 16-row tiles: gate and up of the same rows (phase 0), or two neighbouring
// tiles of down (phase 1). A block's four warps take the row's four segments (cuda_fast.h) and add
// their sums in order through shared memory. Every block has a run of phase 0's items and one of
// phase 1's; a phase 1 item waits until its expert's activations are written, while its weights are
// already on their way. The block that finishes the last expert of 32 rows of y sums them.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/ptx.cuh"
#include "ops/linear/cuda_fragments.cuh"
#include "ops/moe/cuda_fast.h"
#include "ops/moe/cuda_fast_expert.cuh"
#include "ops/moe/cuda_fast_loading.cuh"

namespace winnow::cuda::fast_moe {

__device__ __forceinline__ uint4 load_shared(const std::byte* p) {
  return *reinterpret_cast<const uint4*>(p);
}

/// A lane's decoded registers of two steps of one tile.
struct Fragments {
  std::uint32_t a[2][4];
};

/// A lane's piece of one chunk in shared memory, decoded half by half.
template <QuantScheme kScheme>
struct Chunk;

template <>
struct Chunk<QuantScheme::kNvfp4> {
  uint4 words;
  Nvfp4RowScales top;
  Nvfp4RowScales bottom;

  __device__ __forceinline__ void load(const std::byte* chunk, int lane) {
    words = load_shared(chunk + lane * 16);
    const uint2 scales = *reinterpret_cast<const uint2*>(chunk + 512 + lane / 4 * 8);
    top = decode_nvfp4_scales(scales.x);
    bottom = decode_nvfp4_scales(scales.y);
  }
  template <int kHalf>
  __device__ __forceinline__ void decode(const std::byte*, int, Fragments& out) const {
    nvfp4_fragment<2 * kHalf>(kHalf == 0 ? words.x : words.z, top, bottom, out.a[0]);
    nvfp4_fragment<2 * kHalf + 1>(kHalf == 0 ? words.y : words.w, top, bottom, out.a[1]);
  }
};

template <>
struct Chunk<QuantScheme::kMxfp8> {
  std::uint32_t scales;

  __device__ __forceinline__ void load(const std::byte* chunk, int lane) {
    scales = *reinterpret_cast<const std::uint32_t*>(chunk + 1024 + lane / 4 * 4);
  }
  template <int kHalf>
  __device__ __forceinline__ void decode(const std::byte* chunk, int lane, Fragments& out) const {
    const uint4 words = load_shared(chunk + kHalf * 512 + lane * 16);
    const std::uint32_t top = decode_mxfp8_scale<kHalf>(scales);
    const std::uint32_t bottom = decode_mxfp8_scale<2 + kHalf>(scales);
    mxfp8_fragment(words.x, words.y, top, bottom, out.a[0]);
    mxfp8_fragment(words.z, words.w, top, bottom, out.a[1]);
  }
};

/// Where a lane finds its token's columns: null for a column without a token.
template <int kGroups>
struct Inputs {
  const std::byte* rows[kGroups];

  __device__ __forceinline__ uint4 load(int group, int chunk, int half) const {
    uint4 v = make_uint4(0, 0, 0, 0);
    if (rows[group] != nullptr) {
      asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                   : "l"(rows[group] + chunk * 128 + half * 64));
    }
    return v;
  }
};

template <int kGroups>
using Sums = float[2][kGroups][4];

template <QuantScheme kScheme, int kHalf, int kGroups>
__device__ __forceinline__ void multiply_half(const Chunk<kScheme>& first,
                                              const Chunk<kScheme>& second,
                                              const std::byte* first_at, const std::byte* second_at,
                                              int lane, const uint4 (&b)[kGroups],
                                              Sums<kGroups>& sums) {
  Fragments top;
  Fragments bottom;
  first.template decode<kHalf>(first_at, lane, top);
  second.template decode<kHalf>(second_at, lane, bottom);
#pragma unroll
  for (int n = 0; n < kGroups; ++n) {
    ptx::mma_m16n8k16_bf16(sums[0][n], top.a[0], b[n].x, b[n].y);
    ptx::mma_m16n8k16_bf16(sums[1][n], bottom.a[0], b[n].x, b[n].y);
    ptx::mma_m16n8k16_bf16(sums[0][n], top.a[1], b[n].z, b[n].w);
    ptx::mma_m16n8k16_bf16(sums[1][n], bottom.a[1], b[n].z, b[n].w);
  }
}

/// Columns of one chunk of each token, loaded a chunk before they are used where registers allow.
template <int kGroups>
struct Operands {
  static constexpr bool kIsAhead = kGroups == 1;
  uint4 next[2][kGroups];

  __device__ __forceinline__ void load(const Inputs<kGroups>& inputs, int chunk) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int n = 0; n < kGroups; ++n) next[half][n] = inputs.load(n, chunk, half);
    }
  }
};

/// One stage: `count` chunks of both tiles, the first of which is the row's chunk number `chunk`;
/// chunk `next` of the inputs is used after them.
template <QuantScheme kScheme, int kGroups>
__device__ __forceinline__ void multiply_stage(const std::byte* stage, int count, int chunk,
                                               int next, int lane, const Inputs<kGroups>& inputs,
                                               Operands<kGroups>& operands, Sums<kGroups>& sums) {
  constexpr int kBytes = static_cast<int>(chunk_bytes(kScheme));
#pragma unroll(kGroups == 1 ? 3 : 1)
  for (int j = 0; j < count; ++j) {
    uint4 b[2][kGroups];
    if constexpr (Operands<kGroups>::kIsAhead) {
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
        b[0][n] = operands.next[0][n];
        b[1][n] = operands.next[1][n];
      }
      operands.load(inputs, j + 1 < count ? chunk + j + 1 : next);
    } else {
#pragma unroll
      for (int n = 0; n < kGroups; ++n) b[0][n] = inputs.load(n, chunk + j, 0);
    }
    const std::byte* const first_at = stage + j * kBytes;
    const std::byte* const second_at = stage + (count + j) * kBytes;
    Chunk<kScheme> first;
    Chunk<kScheme> second;
    first.load(first_at, lane);
    second.load(second_at, lane);
    multiply_half<kScheme, 0>(first, second, first_at, second_at, lane, b[0], sums);
    if constexpr (!Operands<kGroups>::kIsAhead) {
#pragma unroll
      for (int n = 0; n < kGroups; ++n) b[1][n] = inputs.load(n, chunk + j, 1);
    }
    multiply_half<kScheme, 1>(first, second, first_at, second_at, lane, b[1], sums);
  }
}

/// Sum over segments of the value that lane `at / 4` of every warp holds in register at % 4.
__device__ inline float sum_segments(const float* sums, int tile, int at) {
  float total = 0.0F;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += sums[(w * 2 + tile) * 128 + at];
  return total;
}

/// Adds the warps' sums of column group `n` and hands them on; every thread of the block.
__device__ __forceinline__ void finish_group(const Params& params, const Run& run, int row, int n,
                                             float first_scale, float second_scale,
                                             const float* shared_sums) {
  const int at = static_cast<int>(threadIdx.x);
  const int lane = at / 4;
  const int tile_row = lane / 4 + at % 4 / 2 * 8;
  const int column = 8 * n + lane % 4 * 2 + at % 2;
  if (column >= run.expert->num_tokens) return;
  const std::int64_t slot = run.expert->first_slot + column;
  const float first = sum_segments(shared_sums, 0, at) * first_scale;
  const float second = sum_segments(shared_sums, 1, at) * second_scale;
  if (run.phase == 0) {
    auto* const out = reinterpret_cast<__nv_bfloat16*>(params.work.activations);
    out[slot * params.layer.max_width() + operand_index(row * 16 + tile_row)] =
        __float2bfloat16_rn(activate(first, second, params.layer.alpha, params.layer.limit));
  } else {
    float* const out = params.work.outputs + slot * params.layer.hidden + row * 32 + tile_row;
    out[0] = first;
    out[16] = second;
  }
}

/// y of 32 rows, once all experts are done with them.
__device__ __noinline__ inline void combine_rows(const Params& params, int row) {
  const Layer& layer = params.layer;
  const Workspace& work = params.work;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int column = row * 32 + lane;
  const int num_pairs = layer.num_pairs();
  for (int t = static_cast<int>(threadIdx.x) / 32; t < layer.num_tokens; t += kWarps) {
    float routed = 0.0F;
    for (int k = 0; k < layer.top_k; ++k) {
      const std::int64_t slot = work.slot_of[t * layer.top_k + k];
      routed = fmaf(work.weights[t * layer.top_k + k],
                    __ldcg(work.outputs + slot * layer.hidden + column), routed);
    }
    const float shared =
        layer.has_shared()
            ? __ldcg(work.outputs + static_cast<std::int64_t>(num_pairs + t) * layer.hidden +
                     column)
            : 0.0F;
    float* const y = layer.y + static_cast<std::int64_t>(t) * layer.hidden + column;
    *y += fmaf(layer.routed_scale, routed, shared);
  }
}

/// Tells other blocks what this one has finished, an item late, so that no barrier is waited for
/// that an item does not need anyway and no atomic's answer is waited for at all.
class Completion {
 public:
  static constexpr int kNone = -1;

  /// A barrier of the block. After it, what every thread wrote for the item before this one is
  /// published by thread 0; the block sums the rows of y that turned out to be complete. `item` is
  /// the one whose results the threads write next: an entry of phase 0 or a row of phase 1.
  __device__ __forceinline__ void step(const Params& params, int phase, int item, int (&rows)[2]) {
    compute_sync();
    const Workspace& work = params.work;
    if (threadIdx.x == 0) {
      int complete = kNone;
      if (ticket_row_ != kNone && ticket_ + 1 == static_cast<std::uint32_t>(*work.num_active)) {
        complete = ticket_row_;
        work.counters[Workspace::kRows + ticket_row_] = 0;
        __threadfence();
      }
      rows[parity_] = complete;
      ticket_row_ = kNone;
      if (item_ != kNone) {
        if (phase_ == 0) {
          add_release(work.counters + Workspace::kEntries + item_);
        } else {
          ticket_ = add_release(work.counters + Workspace::kRows + item_);
          ticket_row_ = item_;
        }
      }
    }
    parity_ ^= 1;
    const int row = rows[parity_];  // written before the barrier above
    if (row != kNone) combine_rows(params, row);
    phase_ = phase;
    item_ = item;
  }

 private:
  int parity_ = 0;
  int phase_ = 0;
  int item_ = kNone;
  int ticket_row_ = kNone;  // thread 0's
  std::uint32_t ticket_ = 0;
};

/// What a block's threads share beside the rings.
struct Shared {
  float* sums;  // [2][kSumFloats]
  int (&complete_rows)[2];
};

/// One run by the whole block.
template <QuantScheme kScheme, int kGroups>
__device__ __forceinline__ void multiply_run(const Params& params, const Run& run, Ring& ring,
                                             Completion& completion, const Shared& shared,
                                             int& sum_parity) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const ActiveExpert& expert = *run.expert;
  const int num_tokens = expert.num_tokens;
  Inputs<kGroups> inputs;
#pragma unroll
  for (int n = 0; n < kGroups; ++n) {
    const int column = 8 * n + lane / 4;
    inputs.rows[n] = nullptr;
    if (column < num_tokens) {
      const std::int64_t slot = expert.first_slot + column;
      const std::byte* const row =
          run.phase == 0 ? params.work.inputs +
                               std::int64_t{params.work.token_of[slot]} * params.layer.hidden * 2
                         : params.work.activations + slot * params.layer.max_width() * 2;
      inputs.rows[n] = row + lane % 4 * 16;
    }
  }
  const float first_scale = run.phase == 0 ? expert.gate_scale : expert.down_scale;
  const float second_scale = run.phase == 0 ? expert.up_scale : expert.down_scale;
  const int num_chunks = run.num_chunks;
  const int begin = warp * kPieceChunks;
  Operands<kGroups> operands;
  if (Operands<kGroups>::kIsAhead && begin < num_chunks) operands.load(inputs, begin);
  for (int row = run.first_row; row < run.end_row; ++row) {
    Sums<kGroups> sums = {};
    for (int piece = begin; piece < num_chunks; piece += kNumSegments * kPieceChunks) {
      const int end = min(num_chunks, piece + kPieceChunks);
      for (int chunk = piece; chunk < end;) {
        const int count = min(chunks_of_stage(kScheme), end - chunk);
        const int after = chunk + count < end ? chunk + count : piece + kNumSegments * kPieceChunks;
        ring.wait_full();
        multiply_stage<kScheme, kGroups>(ring.stage(), count, chunk,
                                         after < num_chunks ? after : begin, lane, inputs, operands,
                                         sums);
        ring.release();
        chunk += count;
      }
    }
#pragma unroll
    for (int n = 0; n < kGroups; ++n) {
      if (8 * n >= num_tokens) break;
      // Two buffers: the barrier of one keeps the readers of the other apart from its next writers.
      float* const buffer = shared.sums + sum_parity * kSumFloats;
      sum_parity ^= 1;
      auto* const mine = reinterpret_cast<float4*>(buffer) + warp * 64 + lane;
      mine[0] = make_float4(sums[0][n][0], sums[0][n][1], sums[0][n][2], sums[0][n][3]);
      mine[32] = make_float4(sums[1][n][0], sums[1][n][1], sums[1][n][2], sums[1][n][3]);
      if (n == 0) {
        completion.step(params, run.phase, run.phase == 0 ? run.entry : row, shared.complete_rows);
      } else {
        compute_sync();
      }
      finish_group(params, run, row, n, first_scale, second_scale, buffer);
    }
  }
}

template <QuantScheme kScheme>
__device__ __forceinline__ void multiply_run_of(const Params& params, const Run& run, Ring& ring,
                                                Completion& completion, const Shared& shared,
                                                int& sum_parity) {
  const int num_tokens = run.expert->num_tokens;
  if (num_tokens <= 8) {
    multiply_run<kScheme, 1>(params, run, ring, completion, shared, sum_parity);
  } else if (num_tokens <= 16) {
    multiply_run<kScheme, 2>(params, run, ring, completion, shared, sum_parity);
  } else {
    multiply_run<kScheme, 4>(params, run, ring, completion, shared, sum_parity);
  }
}

/// One block's work: `bytes` is kSharedBytes of shared memory, aligned to 128; kThreads threads;
/// all `num_blocks` (= params.num_blocks) blocks must be resident together. The list of work is
/// complete, or will be when griddepcontrol.wait returns.
__device__ __forceinline__ void decode_block(const Params& params, std::byte* bytes, int block,
                                             int num_blocks) {
  auto& board = *reinterpret_cast<Board*>(bytes + kSharedBytes - sizeof(Board));
  const Workspace& work = params.work;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const bool is_lane_0 = threadIdx.x % 32 == 0;
  if (threadIdx.x == 0) board.complete_rows[0] = board.complete_rows[1] = Completion::kNone;
  if (is_lane_0 && warp < kWarps) {
    const Ring ring(bytes, warp);
    for (int i = 0; i < kStages; ++i) {
      ptx::mbarrier_init(ptx::shared_address(ring.full + i), 1);
      ptx::mbarrier_init(ptx::shared_address(ring.empty + i), 1);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  ptx::griddepcontrol_wait();
  if (warp == kWarps) return load_rings(params, bytes, block);
  const Shared shared{.sums = reinterpret_cast<float*>(bytes + kRingBytes),
                      .complete_rows = board.complete_rows};
  Ring ring(bytes, warp);
  Completion completion;
  Runs runs;
  runs.start(params, block);
  Run run;
  int phase = 0;
  int sum_parity = 0;
  while (runs.next(params, run)) {
    if (run.phase == 1) {
      // This block's own share of phase 0 first, or blocks would wait for each other.
      if (phase == 0) completion.step(params, 0, Completion::kNone, board.complete_rows);
      phase = 1;
      const auto target = static_cast<std::uint32_t>(run.expert->width / 16);
      const std::uint32_t* const counter = work.counters + Workspace::kEntries + run.entry;
      if (is_lane_0) {
        while (load_acquire(counter) < target) __nanosleep(64);
      }
      __syncwarp();
    }
    if (run.scheme == QuantScheme::kNvfp4) {
      multiply_run_of<QuantScheme::kNvfp4>(params, run, ring, completion, shared, sum_parity);
    } else {
      multiply_run_of<QuantScheme::kMxfp8>(params, run, ring, completion, shared, sum_parity);
    }
  }
  // Publish the last item, learn of its ticket, sum its rows.
  for (int i = 0; i < 3; ++i) {
    completion.step(params, 0, Completion::kNone, board.complete_rows);
  }
  if (threadIdx.x == 0) {
    const std::uint32_t exits = atomicAdd(work.counters + Workspace::kExitTicket, 1U);
    board.is_last = exits + 1 == static_cast<std::uint32_t>(num_blocks);
  }
  compute_sync();
  if (!board.is_last) return;
  for (int i = static_cast<int>(threadIdx.x); i < *work.num_active; i += kComputeThreads) {
    work.counters[Workspace::kEntries + i] = 0;
  }
  if (threadIdx.x == 0) work.counters[Workspace::kExitTicket] = 0;
}

}  // namespace winnow::cuda::fast_moe
