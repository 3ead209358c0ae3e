// Router logits, the choice of experts, and who works on what. Bits as in moe.h: groups of 32
// columns, one fused multiply-add a column, group sums added in ascending order.
#include <cuda_bf16.h>

#include "ops/cuda/check.h"
#include "ops/fast_exp.h"
#include "ops/linear/cuda_fragments.cuh"
#include "ops/moe/cuda_fast.h"

namespace winnow::cuda::fast_moe {
namespace {

constexpr int kThreads = 256;
constexpr int kRouteTokens = 8;  // tokens that share a pass over the router

/// Group sums of one chunk (two groups) for kRouteTokens tokens; a block also rounds its piece of
/// the inputs to bf16. Grid: chunks × blocks of tokens.
__global__ void __launch_bounds__(kThreads) route_partial(Layer layer, Workspace work) {
  __shared__ float h[kRouteTokens][kChunkCols];
  const int chunk = static_cast<int>(blockIdx.x);
  const int first = static_cast<int>(blockIdx.y) * kRouteTokens;
  const int count = min(kRouteTokens, layer.num_tokens - first);
  const int thread = static_cast<int>(threadIdx.x);
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
           operand_index(k)] = __float2bfloat16_rn(h[t][k]);
  }
  const int num_chunks = layer.hidden / kChunkCols;
  for (int i = thread; i < 2 * layer.num_experts; i += kThreads) {
    const int group = i / layer.num_experts;
    const int expert = i % layer.num_experts;
    const int r = expert % kTileRows;
    // Row r of its tile, columns 32 · group on: two steps of pairs, see cuda_matrix.h.
    const std::byte* const base =
        layer.router +
        (static_cast<std::int64_t>(expert / kTileRows) * num_chunks + chunk) *
            chunk_bytes(QuantScheme::kF32) +
        group * 2048 + r % 8 * 128 + r / 8 * 8;
    float w[32];
#pragma unroll
    for (int s = 0; s < 2; ++s) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const float2 pair =
              *reinterpret_cast<const float2*>(base + s * 1024 + c * 32 + half * 16);
          w[16 * s + 8 * half + 2 * c] = pair.x;
          w[16 * s + 8 * half + 2 * c + 1] = pair.y;
        }
      }
    }
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
  __shared__ __align__(16) float h[32][kTileTokens + 4];
  __shared__ __align__(16) float w[32][kTileExperts + 4];
  const int thread = static_cast<int>(threadIdx.x);
  const int first_token = static_cast<int>(blockIdx.x) * kTileTokens;
  const int first_expert = static_cast<int>(blockIdx.y) * kTileExperts;
  const int num_chunks = layer.hidden / kChunkCols;
  const int my_tokens = thread / 32 * 8;  // of the tile
  const int my_experts = thread % 32 * 4;
  float total[8][4] = {};
  for (int group = 0; group < layer.hidden / 32; ++group) {
    __syncthreads();
    // Inputs: a thread takes two pieces of four columns of a token.
#pragma unroll
    for (int i = thread; i < kTileTokens * 8; i += kThreads) {
      const int t = i / 8;
      const int k = i % 8 * 4;
      float4 x = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
      if (first_token + t < layer.num_tokens) {
        const std::int64_t at =
            static_cast<std::int64_t>(first_token + t) * layer.hidden + group * 32 + k;
        x = *reinterpret_cast<const float4*>(layer.h + at);
        if (blockIdx.y == 0) {
          const __nv_bfloat162 low = __floats2bfloat162_rn(x.x, x.y);
          const __nv_bfloat162 high = __floats2bfloat162_rn(x.z, x.w);
          *reinterpret_cast<uint2*>(work.inputs + at * 2) =
              make_uint2(*reinterpret_cast<const std::uint32_t*>(&low),
                         *reinterpret_cast<const std::uint32_t*>(&high));
        }
      }
      h[k][t] = x.x;
      h[k + 1][t] = x.y;
      h[k + 2][t] = x.z;
      h[k + 3][t] = x.w;
    }
    // Router: pairs of columns as they lie in cuda_matrix.h; half a chunk, two steps.
#pragma unroll
    for (int i = thread; i < kTileExperts * 16; i += kThreads) {
      const int pair = i % 4;  // value pair of the lane: rows g, g+8, g, g+8
      const int lane = i / 4 % 32;
      const int step = i / 128 % 2;
      const int tile = i / 256;
      const int e = tile * 16 + lane / 4 + pair % 2 * 8;
      const int k = step * 16 + lane % 4 * 2 + pair / 2 * 8;
      float2 x = make_float2(0.0F, 0.0F);
      const int global_tile = first_expert / kTileRows + tile;
      if (global_tile < (layer.num_experts + kTileRows - 1) / kTileRows) {
        x = *reinterpret_cast<const float2*>(
            layer.router +
            (static_cast<std::int64_t>(global_tile) * num_chunks + group / 2) *
                chunk_bytes(QuantScheme::kF32) +
            ((group % 2 * 2 + step) * 32 + lane) * 32 + pair * 8);
      }
      w[k][e] = x.x;
      w[k + 1][e] = x.y;
    }
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

/// A key that orders as moe.h does: biased score down, then id up; NaN as -inf.
__device__ std::uint64_t choice_key(float biased, int expert) {
  const float value = isnan(biased) ? -INFINITY : biased + 0.0F;  // no -0
  const std::uint32_t bits = __float_as_uint(value);
  const std::uint32_t ordered = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  return std::uint64_t{ordered} << 32 | (0xFFFFFFFFU - static_cast<std::uint32_t>(expert));
}

/// Bytes of a work item's weights over 64: what the list is shared out by.
__device__ int pair_cost(QuantScheme scheme, int num_chunks, int num_tokens) {
  const int bytes = static_cast<int>(chunk_bytes(scheme)) / 32;
  const int groups = (num_tokens + 7) / 8;
  return (bytes + (groups - 1) * 8) * num_chunks;
}

constexpr int kWarps = kThreads / 32;

struct PlanMemory {
  int chosen[kMaxDecodeTokens * kMaxTopK];
  int first_slot[kMaxExperts];
  int room[kWarps];
  std::uint32_t starts[2][kThreads * 2 + 1];  // of each entry's items, in pair_cost
};

__device__ float fragment_scale(const MatrixPart& part) {
  return part.scheme == QuantScheme::kNvfp4 ? part.matrix_scale * kNvfp4FragmentScale : 1.0F;
}

/// Sum over the block's threads before this one, and over all.
__device__ int block_prefix(int value, int* room, int& total) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  int inclusive = value;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int other = __shfl_up_sync(0xFFFFFFFFU, inclusive, offset);
    if (lane >= offset) inclusive += other;
  }
  __syncthreads();
  if (lane == 31) room[warp] = inclusive;
  __syncthreads();
  int before = 0;
  total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += room[w];
    total += room[w];
  }
  return before + inclusive - value;
}

/// Sorts the pairs by expert (then token), lists the active experts, the shared one first, and cuts
/// both phases' items into num_blocks runs of about equal bytes. One block, a thread an expert.
__device__ void plan_decode(const Layer& layer, const Workspace& work, int num_blocks,
                            PlanMemory& memory) {
  const int thread = static_cast<int>(threadIdx.x);
  const int num_pairs = layer.num_pairs();
  for (int i = thread; i < num_pairs; i += kThreads) memory.chosen[i] = __ldcg(work.chosen + i);
  const int num_shared = layer.has_shared() ? 1 : 0;
  const bool is_shared = thread < num_shared;
  const int expert = is_shared ? layer.num_experts : thread - num_shared;
  const bool is_used = thread < layer.num_experts + num_shared;
  DeviceMlp mlp;
  if (is_used) mlp = layer.experts[expert];
  __syncthreads();
  int count = is_shared ? layer.num_tokens : 0;
  if (is_used && !is_shared) {
    for (int i = 0; i < num_pairs; ++i) count += memory.chosen[i] == expert ? 1 : 0;
  }
  int total = 0;
  const int slots_before = block_prefix(is_shared ? 0 : count, memory.room, total);
  const int first_slot = is_shared ? num_pairs : slots_before;
  if (is_used && !is_shared) memory.first_slot[expert] = first_slot;
  const int num_entries = (count + kBlockTokens - 1) / kBlockTokens;
  int all_entries = 0;
  const int first_entry = block_prefix(num_entries, memory.room, all_entries);
  if (thread == 0) *work.num_active = all_entries;
  const int width = is_shared ? layer.shared_width : layer.width;
  int costs[2] = {0, 0};
  for (int phase = 0; phase < 2; ++phase) {
    const MatrixPart& part = phase == 0 ? mlp.gate : mlp.down;
    const int num_chunks = (phase == 0 ? layer.hidden : width) / 64;
    const int num_rows = phase == 0 ? width / 16 : layer.hidden / 32;
    for (int b = 0; b < num_entries; ++b) {
      costs[phase] +=
          pair_cost(part.scheme, num_chunks, min(kBlockTokens, count - b * kBlockTokens)) *
          num_rows;
    }
    int all_costs = 0;
    int start = block_prefix(costs[phase], memory.room, all_costs);
    for (int b = 0; b < num_entries; ++b) {
      memory.starts[phase][first_entry + b] = static_cast<std::uint32_t>(start);
      start += pair_cost(part.scheme, num_chunks, min(kBlockTokens, count - b * kBlockTokens)) *
               num_rows;
    }
    if (thread == 0) memory.starts[phase][all_entries] = static_cast<std::uint32_t>(all_costs);
  }
  for (int b = 0; b < num_entries; ++b) {
    work.active[first_entry + b] = {.gate = mlp.gate.data,
                                    .up = mlp.up.data,
                                    .down = mlp.down.data,
                                    .gate_scale = fragment_scale(mlp.gate),
                                    .up_scale = fragment_scale(mlp.up),
                                    .down_scale = fragment_scale(mlp.down),
                                    .first_slot = first_slot + b * kBlockTokens,
                                    .num_tokens = min(kBlockTokens, count - b * kBlockTokens),
                                    .width = width,
                                    .gate_up_scheme = mlp.gate.scheme,
                                    .down_scheme = mlp.down.scheme};
  }
  __syncthreads();
  for (int i = thread; i < num_pairs; i += kThreads) {
    const int chosen = memory.chosen[i];
    int slot = memory.first_slot[chosen];
    for (int j = 0; j < i; ++j) slot += memory.chosen[j] == chosen ? 1 : 0;
    work.slot_of[i] = slot;
    work.token_of[slot] = i / layer.top_k;
  }
  if (layer.has_shared()) {
    for (int t = thread; t < layer.num_tokens; t += kThreads) work.token_of[num_pairs + t] = t;
  }
  const int shared_entries =
      layer.has_shared() ? (layer.num_tokens + kBlockTokens - 1) / kBlockTokens : 0;
  for (int i = thread; i < 2 * (num_blocks + 1); i += kThreads) {
    const int phase = i / (num_blocks + 1);
    const int block = i % (num_blocks + 1);
    const std::uint32_t* const starts = memory.starts[phase];
    const std::uint32_t all = starts[all_entries];
    const auto target =
        static_cast<std::uint32_t>(std::uint64_t{all} * static_cast<std::uint32_t>(block) /
                                   static_cast<std::uint32_t>(num_blocks));
    WorkPlace place{.entry = all_entries, .row = 0};
    if (target < all) {
      int low = 0;  // the last entry that starts at or before target
      int high = all_entries;
      while (high - low > 1) {
        const int middle = (low + high) / 2;
        (starts[middle] <= target ? low : high) = middle;
      }
      const int rows = phase == 1 ? layer.hidden / 32
                                  : (low < shared_entries ? layer.shared_width : layer.width) / 16;
      const std::uint32_t cost = (starts[low + 1] - starts[low]) / static_cast<std::uint32_t>(rows);
      place.entry = low;
      place.row = static_cast<int>((target - starts[low] + cost - 1) / cost);
      if (place.row >= rows) place = {.entry = low + 1, .row = 0};
    }
    work.begins[i] = place;
  }
}

/// One block a token: sums of `num_groups` groups, sigmoid, top-k, weights. With `num_blocks` the
/// last block to finish plans decode.
__global__ void __launch_bounds__(kThreads)
    route_choose(Layer layer, Workspace work, int num_groups, int num_blocks) {
  __shared__ union {
    struct {
      std::uint64_t keys[kMaxExperts];
      float scores[kMaxExperts];
      std::uint32_t is_chosen[kThreads / 32];
      int ids[kMaxTopK];
    } choice;
    PlanMemory plan;
  } memory;
  __shared__ bool is_last;
  const int token = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  std::uint64_t key = 0;
  if (thread < layer.num_experts) {
    const float* partial =
        work.partial_logits + static_cast<std::int64_t>(token) * layer.num_experts + thread;
    const std::int64_t stride = static_cast<std::int64_t>(layer.num_tokens) * layer.num_experts;
    float logit = 0.0F;
#pragma unroll 48
    for (int g = 0; g < num_groups; ++g) logit += partial[g * stride];
    const float score = ops::fast_sigmoid(logit);
    memory.choice.scores[thread] = score;
    key = choice_key(score + layer.router_bias[thread], thread);
    memory.choice.keys[thread] = key;
  }
  __syncthreads();
  int rank = 0;
  for (int e = 0; e < layer.num_experts; ++e) rank += memory.choice.keys[e] > key ? 1 : 0;
  const bool chosen = thread < layer.num_experts && rank < layer.top_k;
  const std::uint32_t vote = __ballot_sync(0xFFFFFFFFU, chosen);
  if (thread % 32 == 0) memory.choice.is_chosen[thread / 32] = vote;
  __syncthreads();
  if (chosen) {
    int place = __popc(vote & ((1U << (thread % 32)) - 1U));
    for (int w = 0; w < thread / 32; ++w) place += __popc(memory.choice.is_chosen[w]);
    memory.choice.ids[place] = thread;
  }
  __syncthreads();
  if (thread < layer.top_k) {
    float sum = 0.0F;
    for (int k = 0; k < layer.top_k; ++k) sum += memory.choice.scores[memory.choice.ids[k]];
    const int id = memory.choice.ids[thread];
    const float weight = memory.choice.scores[id] / sum;
    const int at = token * layer.top_k + thread;
    work.chosen[at] = id;
    work.weights[at] = weight;
    if (layer.chosen_experts != nullptr) layer.chosen_experts[at] = id;
    if (layer.chosen_weights != nullptr) layer.chosen_weights[at] = weight;
    __threadfence();
  }
  if (num_blocks == 0) return;
  __syncthreads();
  if (thread == 0) {
    const std::uint32_t done = atomicAdd(work.counters + Workspace::kRouteTicket, 1U);
    is_last = done + 1 == gridDim.x;
    if (is_last) work.counters[Workspace::kRouteTicket] = 0;
    __threadfence();
  }
  __syncthreads();
  if (is_last) plan_decode(layer, work, num_blocks, memory.plan);
}

}  // namespace

void route(const Layer& layer, const Workspace& work, int num_blocks, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(layer.hidden / kChunkCols),
                  static_cast<unsigned>((layer.num_tokens + kRouteTokens - 1) / kRouteTokens));
  route_partial<<<grid, kThreads, 0, stream>>>(layer, work);
  check_launch("route_partial");
  route_choose<<<static_cast<unsigned>(layer.num_tokens), kThreads, 0, stream>>>(
      layer, work, layer.hidden / 32, num_blocks);
  check_launch("route_choose");
}

void route_prefill(const Layer& layer, const Workspace& work, cudaStream_t stream) {
  const auto num_tokens = static_cast<unsigned>(layer.num_tokens);
  const dim3 grid((num_tokens + kTileTokens - 1) / kTileTokens,
                  static_cast<unsigned>((layer.num_experts + kTileExperts - 1) / kTileExperts));
  route_logits<<<grid, kThreads, 0, stream>>>(layer, work);
  check_launch("route_logits");
  route_choose<<<num_tokens, kThreads, 0, stream>>>(layer, work, 1, 0);
  check_launch("route_choose");
}

}  // namespace winnow::cuda::fast_moe
