// Router logits, the choice of experts, and who works on what. Bits as in moe.h: groups of 32
// columns, one fused multiply-add a column, group sums added in ascending order.
#include <cuda_bf16.h>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/fast_exp.h"
#include "ops/moe/cuda_fast.h"
#include "ops/moe/cuda_fast_plan.cuh"

namespace winnow::cuda::fast_moe {
namespace {

constexpr int kThreads = 256;
constexpr int kRouteTokens = 8;  // tokens that share a pass over the router

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

/// Group sums of one chunk (two groups) for kRouteTokens tokens; a block also rounds its piece of
/// the inputs to bf16. Grid: chunks × blocks of tokens.
template <bool kIsDecode>
__global__ void __launch_bounds__(kThreads) route_partial(Layer layer, Workspace work) {
  __shared__ float h[kRouteTokens][kChunkCols];
  const int chunk = static_cast<int>(blockIdx.x);
  const int first = static_cast<int>(blockIdx.y) * kRouteTokens;
  const int count = min(kRouteTokens, layer.num_tokens - first);
  const int thread = static_cast<int>(threadIdx.x);
  // The first (and usually only) row of weights does not depend on the launch before.
  float w[32];
  if (thread < 2 * layer.num_experts) load_router_group(layer, chunk, thread, w);
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  for (int i = thread; i < kRouteTokens * kChunkCols; i += kThreads) {
    const int t = i / kChunkCols;
    const int k = i % kChunkCols;
    h[t][k] =
        t < count
            ? layer.h[static_cast<std::int64_t>(first + t) * layer.hidden + chunk * kChunkCols + k]
            : 0.0F;
  }
  __syncthreads();
  auto* const inputs = reinterpret_cast<__nv_bfloat16*>(work.inputs);
  for (int i = thread; i < count * kChunkCols; i += kThreads) {
    const int t = i / kChunkCols;
    const int k = i % kChunkCols;
    inputs[static_cast<std::int64_t>(first + t) * layer.hidden + chunk * kChunkCols +
           (kIsDecode ? operand_index(k) : k)] = __float2bfloat16_rn(h[t][k]);
  }
  for (int i = thread; i < 2 * layer.num_experts; i += kThreads) {
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

// Many tokens: a block multiplies kTileTokens tokens by kTileExperts rows, a thread 8 by 4, group
// by group, so that every sum keeps its order. Bound by fp32: 2 · 128 · 6144 flops a token.
constexpr int kTileTokens = 64;
constexpr int kTileExperts = 128;

__global__ void __launch_bounds__(kThreads) route_logits(Layer layer, Workspace work) {
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  __shared__ __align__(16) float h[32][kTileTokens + 4];
  __shared__ __align__(16) float w[32][kTileExperts + 4];
  const int thread = static_cast<int>(threadIdx.x);
  const int first_token = static_cast<int>(blockIdx.x) * kTileTokens;
  const int first_expert = static_cast<int>(blockIdx.y) * kTileExperts;
  const int num_chunks = layer.hidden / kChunkCols;
  const int my_tokens = thread / 32 * 8;  // of the tile
  const int my_experts = thread % 32 * 4;
  constexpr int kInputs = kTileTokens * 8 / kThreads;     // pieces of four columns a thread loads
  constexpr int kWeights = kTileExperts * 16 / kThreads;  // pairs of columns
  float4 next_inputs[kInputs];
  float2 next_weights[kWeights];
  // Pairs of columns as they lie in cuda_matrix.h; a group is half a chunk, two steps.
  const auto load = [&](int group) {
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      const int t = (thread + i * kThreads) / 8;
      const int k = thread % 8 * 4;
      next_inputs[i] = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
      if (first_token + t < layer.num_tokens) {
        next_inputs[i] = *reinterpret_cast<const float4*>(
            layer.h + static_cast<std::int64_t>(first_token + t) * layer.hidden + group * 32 + k);
      }
    }
#pragma unroll
    for (int i = 0; i < kWeights; ++i) {
      const int at = thread + i * kThreads;
      const int tile = first_expert / kTileRows + at / 256;
      next_weights[i] = make_float2(0.0F, 0.0F);
      if (tile * kTileRows < layer.num_experts) {
        next_weights[i] = *reinterpret_cast<const float2*>(
            layer.router +
            (static_cast<std::int64_t>(tile) * num_chunks + group / 2) *
                chunk_bytes(QuantScheme::kF32) +
            (group % 2 * 2 + at / 128 % 2) * 1024 + at % 128 * 8);
      }
    }
  };
  load(0);
  float total[8][4] = {};
  const int num_groups = layer.hidden / 32;
  for (int group = 0; group < num_groups; ++group) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      const int t = (thread + i * kThreads) / 8;
      const int k = thread % 8 * 4;
      const float4 x = next_inputs[i];
      h[k][t] = x.x;
      h[k + 1][t] = x.y;
      h[k + 2][t] = x.z;
      h[k + 3][t] = x.w;
      if (blockIdx.y == 0 && first_token + t < layer.num_tokens) {
        const __nv_bfloat162 low = __floats2bfloat162_rn(x.x, x.y);
        const __nv_bfloat162 high = __floats2bfloat162_rn(x.z, x.w);
        const std::int64_t at =
            static_cast<std::int64_t>(first_token + t) * layer.hidden + group * 32 + k;
        *reinterpret_cast<uint2*>(work.inputs + at * 2) =
            make_uint2(*reinterpret_cast<const std::uint32_t*>(&low),
                       *reinterpret_cast<const std::uint32_t*>(&high));
      }
    }
#pragma unroll
    for (int i = 0; i < kWeights; ++i) {
      const int at = thread + i * kThreads;
      const int pair = at % 4;  // of the lane: rows g, g+8, g, g+8
      const int lane = at / 4 % 32;
      const int e = at / 256 * 16 + lane / 4 + pair % 2 * 8;
      const int k = at / 128 % 2 * 16 + lane % 4 * 2 + pair / 2 * 8;
      w[k][e] = next_weights[i].x;
      w[k + 1][e] = next_weights[i].y;
    }
    if (group + 1 < num_groups) load(group + 1);
    __syncthreads();
    float sums[8][4] = {};
#pragma unroll 8
    for (int k = 0; k < 32; ++k) {
      const float4 low = *reinterpret_cast<const float4*>(&h[k][my_tokens]);
      const float4 high = *reinterpret_cast<const float4*>(&h[k][my_tokens + 4]);
      const float4 weights = *reinterpret_cast<const float4*>(&w[k][my_experts]);
      const float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int t = 0; t < 8; ++t) {
        sums[t][0] = fmaf(x[t], weights.x, sums[t][0]);
        sums[t][1] = fmaf(x[t], weights.y, sums[t][1]);
        sums[t][2] = fmaf(x[t], weights.z, sums[t][2]);
        sums[t][3] = fmaf(x[t], weights.w, sums[t][3]);
      }
    }
#pragma unroll
    for (int t = 0; t < 8; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) total[t][e] += sums[t][e];
    }
  }
  for (int t = 0; t < 8; ++t) {
    const int token = first_token + my_tokens + t;
    if (token >= layer.num_tokens) break;
    for (int e = 0; e < 4; ++e) {
      const int expert = first_expert + my_experts + e;
      if (expert < layer.num_experts) {
        work.partial_logits[static_cast<std::int64_t>(token) * layer.num_experts + expert] =
            total[t][e];
      }
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

/// Few tokens. One block a token: the sums of its groups, the choice; with `num_blocks` the last
/// block to finish plans decode.
__global__ void __launch_bounds__(kChoiceThreads)
    route_choose(Layer layer, Workspace work, int num_blocks) {
  __shared__ PlanMemory plan;
  __shared__ float logits[kMaxExperts + 1];
  __shared__ bool is_last;
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  const int token = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
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
    if (thread == 0 && num_blocks > 0) {
      __threadfence();
      const std::uint32_t done = atomicAdd(work.counters + Workspace::kRouteTicket, 1U);
      is_last = done + 1 == gridDim.x;
      if (is_last) work.counters[Workspace::kRouteTicket] = 0;
      __threadfence();
    }
  }
  if (num_blocks == 0) return;
  __syncthreads();
  if (is_last) plan_decode(layer, work, num_blocks, plan);
}

/// Many tokens. One warp a token.
__global__ void __launch_bounds__(kThreads) choose_prefill(Layer layer, Workspace work) {
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  const int token = static_cast<int>(blockIdx.x * kThreads + threadIdx.x) / 32;
  if (token >= layer.num_tokens) return;
  choose_experts(layer, work, token,
                 work.partial_logits + static_cast<std::int64_t>(token) * layer.num_experts);
}

}  // namespace

namespace {

template <bool kIsDecode>
void route_few(const Layer& layer, const Workspace& work, int num_blocks, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(layer.hidden / kChunkCols),
                  static_cast<unsigned>((layer.num_tokens + kRouteTokens - 1) / kRouteTokens));
  launch_overlapping(route_partial<kIsDecode>, {.grid = grid, .block = dim3(kThreads)}, stream,
                     "route_partial", layer, work);
  launch_overlapping(
      route_choose,
      {.grid = dim3(static_cast<unsigned>(layer.num_tokens)), .block = dim3(kChoiceThreads)},
      stream, "route_choose", layer, work, num_blocks);
}

}  // namespace

void route(const Layer& layer, const Workspace& work, int num_blocks, cudaStream_t stream) {
  route_few<true>(layer, work, num_blocks, stream);
}

void route_prefill(const Layer& layer, const Workspace& work, cudaStream_t stream) {
  if (layer.num_tokens <= kMaxSpreadTokens) return route_few<false>(layer, work, 0, stream);
  const auto num_tokens = static_cast<unsigned>(layer.num_tokens);
  const dim3 grid((num_tokens + kTileTokens - 1) / kTileTokens,
                  static_cast<unsigned>((layer.num_experts + kTileExperts - 1) / kTileExperts));
  launch_overlapping(route_logits, {.grid = grid, .block = dim3(kThreads)}, stream, "route_logits",
                     layer, work);
  constexpr unsigned kTokensOfBlock = kThreads / 32;
  launch_overlapping(
      choose_prefill,
      {.grid = dim3((num_tokens + kTokensOfBlock - 1) / kTokensOfBlock), .block = dim3(kThreads)},
      stream, "choose_prefill", layer, work);
}

}  // namespace winnow::cuda::fast_moe
