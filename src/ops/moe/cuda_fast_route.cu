// Router logits, the choice of experts, and who works on what: the launches, and the form for many
// tokens. Bits as in moe.h.
#include <cuda_bf16.h>

#include "ops/cuda/check.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/moe/cuda_fast.h"
#include "ops/moe/cuda_fast_route.cuh"

namespace winnow::cuda::fast_moe {
namespace {

constexpr int kThreads = 256;
template <bool kIsDecode>
__global__ void __launch_bounds__(kThreads) route_partial(Layer layer, Workspace work) {
  __shared__ RouteMemory memory;
  route_partial_block<kIsDecode, kThreads>(layer, work, memory, static_cast<int>(blockIdx.x),
                                           static_cast<int>(blockIdx.y));
}

template <bool kIsDecode>
__global__ void __launch_bounds__(kChoiceThreads) route_choose(Layer layer, Workspace work) {
  __shared__ ChoiceMemory memory;
  route_choose_block<kIsDecode>(layer, work, memory, static_cast<int>(blockIdx.x));
}

// Many tokens: a block multiplies kTileTokens tokens by kTileExperts rows, a thread 4 by 4, group
// by group, so that every sum keeps its order. Bound by fp32: 2 · 128 · 6144 flops a token. Small
// blocks, so that 2048 tokens reach every multiprocessor and several blocks hide each other's
// waits.
constexpr int kTileTokens = 64;
constexpr int kTileExperts = 64;
constexpr int kLogitThreads = kTileTokens / 4 * (kTileExperts / 4);

__global__ void __launch_bounds__(kLogitThreads) route_logits(Layer layer, Workspace work) {
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  __shared__ __align__(16) float h[32][kTileTokens + 4];
  __shared__ __align__(16) float w[32][kTileExperts + 4];
  const int thread = static_cast<int>(threadIdx.x);
  const int first_token = static_cast<int>(blockIdx.x) * kTileTokens;
  const int first_expert = static_cast<int>(blockIdx.y) * kTileExperts;
  const int num_chunks = layer.hidden / kChunkCols;
  const int my_tokens = thread / (kTileExperts / 4) * 4;  // of the tile
  const int my_experts = thread % (kTileExperts / 4) * 4;
  constexpr int kInputs = kTileTokens * 8 / kLogitThreads;  // pieces of four columns a thread loads
  constexpr int kWeights = kTileExperts * 16 / kLogitThreads;  // pairs of columns
  float4 next_inputs[kInputs];
  float2 next_weights[kWeights];
  // Pairs of columns as they lie in cuda_matrix.h; a group is half a chunk, two steps.
  const auto load = [&](int group) {
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      const int t = (thread + i * kLogitThreads) / 8;
      const int k = thread % 8 * 4;
      next_inputs[i] = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
      if (first_token + t < layer.num_tokens) {
        next_inputs[i] = *reinterpret_cast<const float4*>(
            layer.h + static_cast<std::int64_t>(first_token + t) * layer.hidden + group * 32 + k);
      }
    }
#pragma unroll
    for (int i = 0; i < kWeights; ++i) {
      const int at = thread + i * kLogitThreads;
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
  float total[4][4] = {};
  const int num_groups = layer.hidden / 32;
  for (int group = 0; group < num_groups; ++group) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      const int t = (thread + i * kLogitThreads) / 8;
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
      const int at = thread + i * kLogitThreads;
      const int pair = at % 4;  // of the lane: rows g, g+8, g, g+8
      const int lane = at / 4 % 32;
      const int e = at / 256 * 16 + lane / 4 + pair % 2 * 8;
      const int k = at / 128 % 2 * 16 + lane % 4 * 2 + pair / 2 * 8;
      w[k][e] = next_weights[i].x;
      w[k + 1][e] = next_weights[i].y;
    }
    if (group + 1 < num_groups) load(group + 1);
    __syncthreads();
    float sums[4][4] = {};
#pragma unroll 8
    for (int k = 0; k < 32; ++k) {
      const float4 inputs = *reinterpret_cast<const float4*>(&h[k][my_tokens]);
      const float4 weights = *reinterpret_cast<const float4*>(&w[k][my_experts]);
      const float x[4] = {inputs.x, inputs.y, inputs.z, inputs.w};
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        sums[t][0] = fmaf(x[t], weights.x, sums[t][0]);
        sums[t][1] = fmaf(x[t], weights.y, sums[t][1]);
        sums[t][2] = fmaf(x[t], weights.z, sums[t][2]);
        sums[t][3] = fmaf(x[t], weights.w, sums[t][3]);
      }
    }
#pragma unroll
    for (int t = 0; t < 4; ++t) {
#pragma unroll
      for (int e = 0; e < 4; ++e) total[t][e] += sums[t][e];
    }
  }
  for (int t = 0; t < 4; ++t) {
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

template <typename Kernel>
cudaError_t prefer_shared_memory(Kernel* kernel) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                              cudaSharedmemCarveoutMaxShared);
}

template <bool kIsDecode>
void route_few(const Layer& layer, const Workspace& work, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(layer.hidden / kChunkCols),
                  static_cast<unsigned>((layer.num_tokens + kRouteTokens - 1) / kRouteTokens));
  launch_overlapping(route_partial<kIsDecode>, {.grid = grid, .block = dim3(kThreads)}, stream,
                     "route_partial", layer, work);
  launch_overlapping(
      route_choose<kIsDecode>,
      {.grid = dim3(static_cast<unsigned>(layer.num_tokens)), .block = dim3(kChoiceThreads)},
      stream, "route_choose", layer, work);
}

}  // namespace

void route(const Layer& layer, const Workspace& work, cudaStream_t stream) {
  // Like decode's, or its blocks could not join these on a multiprocessor.
  static const cudaError_t kConfigured = [] {
    const cudaError_t status = prefer_shared_memory(route_partial<true>);
    return status == cudaSuccess ? prefer_shared_memory(route_choose<true>) : status;
  }();
  check(kConfigured, "cudaFuncSetAttribute");
  route_few<true>(layer, work, stream);
}

void route_prefill(const Layer& layer, const Workspace& work, cudaStream_t stream) {
  if (layer.num_tokens <= kMaxSpreadTokens) return route_few<false>(layer, work, stream);
  const auto num_tokens = static_cast<unsigned>(layer.num_tokens);
  const dim3 grid((num_tokens + kTileTokens - 1) / kTileTokens,
                  static_cast<unsigned>((layer.num_experts + kTileExperts - 1) / kTileExperts));
  launch_overlapping(route_logits, {.grid = grid, .block = dim3(kLogitThreads)}, stream,
                     "route_logits", layer, work);
  constexpr unsigned kTokensOfBlock = kThreads / 32;
  launch_overlapping(
      choose_prefill,
      {.grid = dim3((num_tokens + kTokensOfBlock - 1) / kTokensOfBlock), .block = dim3(kThreads)},
      stream, "choose_prefill", layer, work);
}

}  // namespace winnow::cuda::fast_moe
