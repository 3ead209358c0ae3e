// attention() in its written order: one CUDA block for each (token, kv head) walks the token's
// blocks; keys, then values, of a block pass through shared memory as floats, 64 tokens at a time.
#include <algorithm>

#include "ops/attention/attention.h"
#include "ops/cuda/check.h"
#include "ops/cuda/codecs.cuh"
#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/fast_exp.h"
#include "ops/op_context.h"

namespace winnow::cuda::exact {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kTile = 64;  // tokens of a block decoded at once
constexpr int kQuad = 4;   // query heads that share a thread's loads
constexpr unsigned kWholeWarp = 0xFFFFFFFFU;

struct AttentionKernelParams {
  const float* q = nullptr;
  ops::AttentionShape shape;
  float scale = 0.0F;
  DeviceBatch batch;
  CachePlanes planes;
  const std::int32_t* blocks = nullptr;
  float* out = nullptr;
};

constexpr int padded(int heads) { return (heads + kQuad - 1) / kQuad * kQuad; }

/// Shared arrays of one (token, kv head); `heads` is the group rounded up to quads.
struct Arrays {
  __device__ Arrays(float* at, int heads, int dim, int block_tokens) {
    query = at;
    scores = query + dim * heads;
    outputs = scores + block_tokens * heads;
    maxima = outputs + heads * dim;
    sums = maxima + heads;
    carries = sums + heads;
    table = carries + heads;
    tile = table + kNvfp4TableSize;
  }
  static std::size_t num_bytes(int heads, int dim, int block_tokens) {
    const int floats =
        2 * dim * heads + block_tokens * heads + 3 * heads + kNvfp4TableSize + kTile * (dim + 1);
    return static_cast<std::size_t>(floats) * sizeof(float);
  }

  float* query;    // [dim][heads]
  float* scores;   // [block_tokens][heads]; becomes weights
  float* outputs;  // [heads][dim]
  float* maxima;   // [heads]
  float* sums;     // [heads]
  float* carries;  // [heads]
  float* table;    // codecs.cuh
  float* tile;     // [kTile][dim + 1]
};

/// Tokens [first, first + count) of one plane into the tile.
__device__ void decode_tile(const HeadPlanes& plane, int head, const std::byte* row, int first,
                            int count, const Arrays& shared) {
  decode_cache_tokens<kTile, kThreads>(plane, head, row, first, count, shared.table, shared.tile);
}

/// scores[first + t][h] = (Σ_d q · k, one chain in ascending d) · scale.
__device__ void score_tile(const Arrays& shared, int heads, int dim, int first, int count,
                           float scale) {
  const int quads = heads / kQuad;
  for (int i = static_cast<int>(threadIdx.x); i < kTile * quads; i += kThreads) {
    const int t = i % kTile;
    const int quad = i / kTile;
    if (t >= count) continue;
    const float* const key = shared.tile + t * (dim + 1);
    const float* const query = shared.query + quad * kQuad;
    float4 sum = {0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll 8
    for (int d = 0; d < dim; ++d) {
      const float4 q = *reinterpret_cast<const float4*>(query + d * heads);
      const float k = key[d];
      sum.x = fmaf(q.x, k, sum.x);
      sum.y = fmaf(q.y, k, sum.y);
      sum.z = fmaf(q.z, k, sum.z);
      sum.w = fmaf(q.w, k, sum.w);
    }
    *reinterpret_cast<float4*>(shared.scores + (first + t) * heads + quad * kQuad) = {
        sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale};
  }
}

/// Moves the running maximum past this block and turns scores into weights; a warp a head.
__device__ void weigh(const Arrays& shared, int heads, int num_keys) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int h = static_cast<int>(threadIdx.x / 32); h < heads; h += kWarps) {
    const float before = shared.maxima[h];
    float maximum = before;
    for (int t = lane; t < num_keys; t += 32)
      maximum = fmaxf(maximum, shared.scores[t * heads + h]);
    for (int step = 16; step > 0; step /= 2) {
      maximum = fmaxf(maximum, __shfl_xor_sync(kWholeWarp, maximum, step));
    }
    for (int t = lane; t < num_keys; t += 32) {
      float& score = shared.scores[t * heads + h];
      score = ops::fast_exp(score - maximum);
    }
    __syncwarp();
    if (lane == 0) {
      shared.carries[h] = ops::fast_exp(before - maximum);
      shared.maxima[h] = maximum;
    }
  }
}

/// The sum of weights, in ascending tokens; a thread a head.
__device__ void add_weights(const Arrays& shared, int heads, int num_keys) {
  for (int h = static_cast<int>(threadIdx.x); h < heads; h += kThreads) {
    float sum = shared.sums[h] * shared.carries[h];
#pragma unroll 8
    for (int t = 0; t < num_keys; ++t) sum += shared.scores[t * heads + h];
    shared.sums[h] = sum;
  }
}

/// outputs[h][d] = fma(weight, value, …) in ascending tokens, carried over from the blocks before.
__device__ void add_tile(const Arrays& shared, int heads, int dim, int first, int count) {
  const int quads = heads / kQuad;
  for (int i = static_cast<int>(threadIdx.x); i < dim * quads; i += kThreads) {
    const int quad = i / dim;
    const int d = i - quad * dim;
    float* const out = shared.outputs + quad * kQuad * dim + d;
    const float* const carries = shared.carries + quad * kQuad;
    float sum[kQuad];
#pragma unroll
    for (int j = 0; j < kQuad; ++j) sum[j] = first == 0 ? out[j * dim] * carries[j] : out[j * dim];
    const float* const weights = shared.scores + first * heads + quad * kQuad;
#pragma unroll 8
    for (int t = 0; t < count; ++t) {
      const float4 p = *reinterpret_cast<const float4*>(weights + t * heads);
      const float v = shared.tile[t * (dim + 1) + d];
      sum[0] = fmaf(p.x, v, sum[0]);
      sum[1] = fmaf(p.y, v, sum[1]);
      sum[2] = fmaf(p.z, v, sum[2]);
      sum[3] = fmaf(p.w, v, sum[3]);
    }
#pragma unroll
    for (int j = 0; j < kQuad; ++j) out[j * dim] = sum[j];
  }
}

/// One cache block; ends with work on the tile, so a barrier must come before its next use.
__device__ void attend(const AttentionKernelParams& params, const Arrays& shared, int heads,
                       int kv_head, const std::byte* row, int num_keys) {
  const int dim = params.shape.head_dim;
  for (int first = 0; first < num_keys; first += kTile) {
    const int count = min(kTile, num_keys - first);
    __syncthreads();
    decode_tile(params.planes.k, kv_head, row, first, count, shared);
    __syncthreads();
    score_tile(shared, heads, dim, first, count, params.scale);
  }
  __syncthreads();
  weigh(shared, heads, num_keys);
  for (int first = 0; first < num_keys; first += kTile) {
    const int count = min(kTile, num_keys - first);
    __syncthreads();
    if (first == 0) add_weights(shared, heads, num_keys);
    decode_tile(params.planes.v, kv_head, row, first, count, shared);
    __syncthreads();
    add_tile(shared, heads, dim, first, count);
  }
}

__global__ void __launch_bounds__(kThreads) exact_attention(AttentionKernelParams params) {
  extern __shared__ float4 dynamic[];
  const ops::AttentionShape& shape = params.shape;
  const int group = shape.num_heads / shape.num_kv_heads;
  const int heads = padded(group);
  const int dim = shape.head_dim;
  const int block_tokens = params.planes.block_tokens;
  const Arrays shared(reinterpret_cast<float*>(dynamic), heads, dim, block_tokens);
  const int thread = static_cast<int>(threadIdx.x);
  const auto token = static_cast<std::int32_t>(blockIdx.x);
  const auto kv_head = static_cast<int>(blockIdx.y);
  const std::int64_t first_head = std::int64_t{token} * shape.num_heads + kv_head * group;
  for (int i = thread; i < heads * dim; i += kThreads) {
    const int h = i / dim;
    const int d = i - h * dim;
    shared.query[d * heads + h] = h < group ? params.q[(first_head + h) * dim + d] : 0.0F;
    shared.outputs[i] = 0.0F;
  }
  for (int h = thread; h < heads; h += kThreads) {
    shared.maxima[h] = -INFINITY;
    shared.sums[h] = 0.0F;
  }
  fill_nvfp4_table(shared.table, params.planes.mode);

  const std::int32_t position = params.batch.positions[token];
  const std::int32_t own_block = position / block_tokens;
  const std::int32_t* const list =
      params.blocks == nullptr
          ? nullptr
          : params.blocks +
                (std::int64_t{token} * shape.num_index_heads + kv_head) * shape.top_k_blocks;
  const std::int32_t count = list == nullptr ? own_block + 1 : shape.top_k_blocks;
  for (std::int32_t i = 0; i < count; ++i) {
    const std::int32_t block = list == nullptr ? i : list[i];
    if (block < 0 || block > own_block) break;
    attend(params, shared, heads, kv_head, params.planes.row(params.batch.pool_row(token, block)),
           min(block_tokens, position - block * block_tokens + 1));
  }
  __syncthreads();
  for (int i = thread; i < group * dim; i += kThreads) {
    params.out[first_head * dim + i] = shared.outputs[i] / shared.sums[i / dim];
  }
}

}  // namespace

void attention(const ops::OpContext& context, const ops::AttentionParams& params) {
  if (params.batch.num_tokens == 0) return;
  const ops::AttentionShape& shape = params.shape;
  const AttentionKernelParams kernel{.q = params.q,
                                     .shape = shape,
                                     .scale = params.scale,
                                     .batch = device_batch(params.batch),
                                     .planes = cache_planes(params.cache, params.layer),
                                     .blocks = params.blocks,
                                     .out = params.out};
  const std::size_t shared = Arrays::num_bytes(padded(shape.num_heads / shape.num_kv_heads),
                                               shape.head_dim, kernel.planes.block_tokens);
  check(cudaFuncSetAttribute(exact_attention, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared)),
        "attention: shared memory");
  const dim3 blocks(static_cast<unsigned>(params.batch.num_tokens),
                    static_cast<unsigned>(shape.num_kv_heads));
  exact_attention<<<blocks, kThreads, shared, context.cuda->stream()>>>(kernel);
  check_launch("attention");
}

}  // namespace winnow::cuda::exact
