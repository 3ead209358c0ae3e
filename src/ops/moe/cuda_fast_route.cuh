// Router logits and the choice of experts, a block's part at a time. Bits as in moe.h: groups of 32
// columns, one fused multiply-add a column, group sums added in ascending order.
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/ptx.cuh"
#include "ops/fast_exp.h"
#include "ops/moe/cuda_fast.h"
#include "ops/moe/cuda_fast_counters.cuh"
#include "ops/moe/cuda_fast_plan.cuh"

namespace winnow::cuda::fast_moe {

/// Row i % num_experts of the router, 32 columns of half i / num_experts of a chunk: two steps of
/// pairs, see cuda_matrix.h.
__device__ __forceinline__ void load_router_group(const Layer& layer, int chunk, int i,
                                                  float (&w)[32]) {
  const int group = i / layer.num_experts;
  const int expert = i % layer.num_experts;
  const int r = expert % kTileRows;
  const int num_chunks = layer.hidden / kChunkCols;
  const std::byte* const base =
      layer.router +
      (static_cast<std::int64_t>(expert / kTileRows) * num_chunks + chunk) *
          chunk_bytes(QuantScheme::kF32) +
      group * 2048 + r % 8 * 128 + r / 8 * 8;
#pragma unroll
  for (int s = 0; s < 2; ++s) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float2 pair = *reinterpret_cast<const float2*>(base + s * 1024 + c * 32 + half * 16);
        w[16 * s + 8 * half + 2 * c] = pair.x;
        w[16 * s + 8 * half + 2 * c + 1] = pair.y;
      }
    }
  }
}

/// Inputs of one chunk.
struct RouteMemory {
  float h[kRouteTokens][kChunkCols];
};

/// Group sums of one chunk (two groups) for the kRouteTokens tokens of a group; also rounds its
/// piece of the inputs to bf16. A block of kNumThreads.
template <bool kIsDecode, int kNumThreads>
__device__ __forceinline__ void route_partial_block(const Layer& layer, const Workspace& work,
                                                    RouteMemory& memory, int chunk,
                                                    int token_group) {
  auto& h = memory.h;
  const int first = token_group * kRouteTokens;
  const int count = min(kRouteTokens, layer.num_tokens - first);
  const int thread = static_cast<int>(threadIdx.x);
  // The first (and usually only) row of weights does not depend on the launch before.
  float w[32];
  if (thread < 2 * layer.num_experts) load_router_group(layer, chunk, thread, w);
  ptx::griddepcontrol_wait();
  // Not earlier: what comes next must not find the counters of the layer before.
  ptx::griddepcontrol_launch_dependents();
  for (int i = thread; i < kRouteTokens * kChunkCols; i += kNumThreads) {
    const int t = i / kChunkCols;
    const int k = i % kChunkCols;
    h[t][k] =
        t < count
            ? layer.h[static_cast<std::int64_t>(first + t) * layer.hidden + chunk * kChunkCols + k]
            : 0.0F;
  }
  __syncthreads();
  auto* const inputs = reinterpret_cast<__nv_bfloat16*>(work.inputs);
  for (int i = thread; i < count * kChunkCols; i += kNumThreads) {
    const int t = i / kChunkCols;
    const int k = i % kChunkCols;
    inputs[static_cast<std::int64_t>(first + t) * layer.hidden + chunk * kChunkCols +
           (kIsDecode ? operand_index(k) : k)] = __float2bfloat16_rn(h[t][k]);
  }
  if constexpr (kIsDecode) {
    __syncthreads();
    if (thread == 0) add_release(work.counters + Workspace::kInputs);
  }
  for (int i = thread; i < 2 * layer.num_experts; i += kNumThreads) {
    const int group = i / layer.num_experts;
    const int expert = i % layer.num_experts;
    if (i != thread) load_router_group(layer, chunk, i, w);
    float sums[kRouteTokens] = {};
#pragma unroll
    for (int k = 0; k < 32; k += 4) {
#pragma unroll
      for (int t = 0; t < kRouteTokens; ++t) {
        const float4 x = *reinterpret_cast<const float4*>(&h[t][32 * group + k]);
        sums[t] = fmaf(x.x, w[k], sums[t]);
        sums[t] = fmaf(x.y, w[k + 1], sums[t]);
        sums[t] = fmaf(x.z, w[k + 2], sums[t]);
        sums[t] = fmaf(x.w, w[k + 3], sums[t]);
      }
    }
    for (int t = 0; t < kRouteTokens; ++t) {
      if (t >= count) break;
      work.partial_logits[(static_cast<std::int64_t>(2 * chunk + group) * layer.num_tokens + first +
                           t) *
                              layer.num_experts +
                          expert] = sums[t];
    }
  }
}

/// Orders as the biased score does, NaN as -inf; never 0.
__device__ __forceinline__ std::uint32_t choice_key(float biased) {
  const float value = isnan(biased) ? -INFINITY : biased + 0.0F;  // no -0
  const std::uint32_t bits = __float_as_uint(value);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

/// One warp: the choice of one token from its logits, ties to the lower id, and the weights.
__device__ __forceinline__ void choose_experts(const Layer& layer, const Workspace& work, int token,
                                               const float* logits) {
  constexpr int kOfLane = (kMaxExperts + 31) / 32;
  constexpr std::uint32_t kAll = 0xFFFFFFFFU;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float scores[kOfLane];
  std::uint32_t keys[kOfLane];   // 0: not there, or taken
  std::uint32_t taken[kOfLane];  // bit l: expert 32 i + l
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    const int expert = 32 * i + lane;
    scores[i] = 0.0F;
    keys[i] = 0;
    taken[i] = 0;
    if (expert < layer.num_experts) {
      scores[i] = ops::fast_sigmoid(logits[expert]);
      keys[i] = choice_key(scores[i] + layer.router_bias[expert]);
    }
  }
  for (int k = 0; k < layer.top_k; ++k) {
    std::uint32_t best = 0;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) best = max(best, keys[i]);
    best = __reduce_max_sync(kAll, best);
    bool is_found = false;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const std::uint32_t equal = __ballot_sync(kAll, keys[i] == best);
      if (is_found || equal == 0) continue;
      is_found = true;
      const std::uint32_t lowest = equal & (~equal + 1U);
      taken[i] |= lowest;
      if ((lowest >> lane & 1U) != 0) keys[i] = 0;
    }
  }
  // Ascending id: lane k keeps choice k.
  float sum = 0.0F;
  float score = 0.0F;
  int id = 0;
  int k = 0;
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    for (std::uint32_t left = taken[i]; left != 0; left &= left - 1U) {
      const int owner = __ffs(static_cast<int>(left)) - 1;
      const float value = __shfl_sync(kAll, scores[i], owner);
      sum += value;
      if (lane == k) {
        score = value;
        id = 32 * i + owner;
      }
      ++k;
    }
  }
  if (lane < layer.top_k) {
    const float weight = score / sum;
    const int at = token * layer.top_k + lane;
    work.chosen[at] = id;
    work.weights[at] = weight;
    if (layer.chosen_experts != nullptr) layer.chosen_experts[at] = id;
    if (layer.chosen_weights != nullptr) layer.chosen_weights[at] = weight;
  }
}

// Group sums that a thread of the choice holds at once: they arrive together, and are added in
// order, slice after slice of the block.
constexpr int kHeldGroups = 48;

__device__ __forceinline__ void prefetch_l2(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

struct ChoiceMemory {
  PlanMemory plan;
  float logits[kMaxExperts + 1];
  bool is_last;
};

/// A block of kChoiceThreads, one for each token: the sums of its groups, the choice; where decode
/// follows, the last block to finish plans it.
template <bool kIsDecode>
__device__ __forceinline__ void route_choose_block(const Layer& layer, const Workspace& work,
                                                   ChoiceMemory& memory, int token) {
  auto& logits = memory.logits;
  ptx::griddepcontrol_launch_dependents();
  // What does not depend on the launch before, close by when it is wanted.
  const int thread = static_cast<int>(threadIdx.x);
  if (kIsDecode && thread <= layer.num_experts) {
    if (thread < layer.num_experts || layer.has_shared()) {
      prefetch_l2(layer.experts + thread);
      prefetch_l2(&layer.experts[thread].down);
    }
    if (thread < layer.num_experts) prefetch_l2(layer.router_bias + thread);
  }
  ptx::griddepcontrol_wait();
  const int num_groups = layer.hidden / 32;
  const int slice_threads = layer.num_experts <= 128 ? 128 : 256;
  const int num_slices = kChoiceThreads / slice_threads;
  const int slice = thread / slice_threads;
  const int expert = thread % slice_threads;
  const bool is_used = expert < layer.num_experts;
  const std::int64_t stride = static_cast<std::int64_t>(layer.num_tokens) * layer.num_experts;
  for (int begin = 0; begin < num_groups; begin += num_slices * kHeldGroups) {
    const int first = begin + slice * kHeldGroups;
    const float* const partial = work.partial_logits + first * stride +
                                 static_cast<std::int64_t>(token) * layer.num_experts + expert;
    float held[kHeldGroups];
#pragma unroll
    for (int g = 0; g < kHeldGroups; ++g) {
      held[g] = is_used && first + g < num_groups ? __ldcg(partial + g * stride) : 0.0F;
    }
    for (int s = 0; s < num_slices; ++s) {
      if (s == slice && is_used) {
        float sum = begin == 0 && s == 0 ? 0.0F : logits[expert];
#pragma unroll
        for (int g = 0; g < kHeldGroups; ++g) {
          if (first + g < num_groups) sum += held[g];
        }
        logits[expert] = sum;
      }
      __syncthreads();
    }
  }
  if (thread < 32) {
    choose_experts(layer, work, token, logits);
    __syncwarp();
    if (thread == 0 && kIsDecode) {
      __threadfence();
      const std::uint32_t done = atomicAdd(work.counters + Workspace::kRouteTicket, 1U);
      memory.is_last = done + 1 == static_cast<std::uint32_t>(layer.num_tokens);
      if (memory.is_last) work.counters[Workspace::kRouteTicket] = 0;
      __threadfence();
    }
  }
  if constexpr (!kIsDecode) return;
  __syncthreads();
  if (memory.is_last) plan_decode(layer, work, memory.plan);
}

}  // namespace winnow::cuda::fast_moe
