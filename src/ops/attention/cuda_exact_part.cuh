// Attention in its written order, by one CUDA block: the query heads of one (token, KV head)
// against parts of keys in ascending order. Keys, then values, of a part pass through shared memory
// as floats, 64 at a time. What exact::attention() and exact::draft_attention() are made of.
#pragma once

#include <cstddef>

#include "ops/cuda/codecs.cuh"
#include "ops/fast_exp.h"

namespace winnow::cuda::exact::attention_part {

inline constexpr int kThreads = 256;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kTile = 64;  // tokens of a block decoded at once
inline constexpr int kQuad = 4;   // query heads that share a thread's loads
inline constexpr unsigned kWholeWarp = 0xFFFFFFFFU;

constexpr int padded(int heads) { return (heads + kQuad - 1) / kQuad * kQuad; }

/// Shared arrays of one (token, kv head); `heads` is the group rounded up to quads, `most_keys`
/// what a part has at most.
struct Arrays {
  __device__ Arrays(float* at, int heads, int dim, int most_keys) {
    query = at;
    scores = query + dim * heads;
    outputs = scores + most_keys * heads;
    maxima = outputs + heads * dim;
    sums = maxima + heads;
    carries = sums + heads;
    table = carries + heads;
    tile = table + kNvfp4TableSize;
  }
  static std::size_t num_bytes(int heads, int dim, int most_keys) {
    const int floats =
        2 * dim * heads + most_keys * heads + 3 * heads + kNvfp4TableSize + kTile * (dim + 1);
    return static_cast<std::size_t>(floats) * sizeof(float);
  }

  float* query;    // [dim][heads]
  float* scores;   // [most_keys][heads]; becomes weights
  float* outputs;  // [heads][dim]
  float* maxima;   // [heads]
  float* sums;     // [heads]
  float* carries;  // [heads]
  float* table;    // codecs.cuh
  float* tile;     // [kTile][dim + 1]
};

__device__ inline void begin(const Arrays& shared, int heads, int group, int dim, const float* q) {
  for (int i = static_cast<int>(threadIdx.x); i < heads * dim; i += kThreads) {
    const int h = i / dim;
    const int d = i - h * dim;
    shared.query[d * heads + h] = h < group ? q[h * dim + d] : 0.0F;
    shared.outputs[i] = 0.0F;
  }
  for (int h = static_cast<int>(threadIdx.x); h < heads; h += kThreads) {
    shared.maxima[h] = -INFINITY;
    shared.sums[h] = 0.0F;
  }
}

/// scores[first + t][h] = (Σ_d q · k, one chain in ascending d) · scale.
__device__ inline void score_tile(const Arrays& shared, int heads, int dim, int first, int count,
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

/// Moves the running maximum past this part and turns scores into weights; a warp a head.
__device__ inline void weigh(const Arrays& shared, int heads, int num_keys) {
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
__device__ inline void add_weights(const Arrays& shared, int heads, int num_keys) {
  for (int h = static_cast<int>(threadIdx.x); h < heads; h += kThreads) {
    float sum = shared.sums[h] * shared.carries[h];
#pragma unroll 8
    for (int t = 0; t < num_keys; ++t) sum += shared.scores[t * heads + h];
    shared.sums[h] = sum;
  }
}

/// outputs[h][d] = fma(weight, value, …) in ascending tokens, carried over from the parts before.
__device__ inline void add_tile(const Arrays& shared, int heads, int dim, int first, int count) {
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

/// One part; ends with work on the tile, so a barrier must come before its next use.
/// fill_keys(first, count) and fill_values place keys [first, first + count) of the part in the
/// tile.
template <typename FillKeys, typename FillValues>
__device__ inline void attend(const Arrays& shared, int heads, int dim, float scale, int num_keys,
                              const FillKeys& fill_keys, const FillValues& fill_values) {
  for (int first = 0; first < num_keys; first += kTile) {
    const int count = min(kTile, num_keys - first);
    __syncthreads();
    fill_keys(first, count);
    __syncthreads();
    score_tile(shared, heads, dim, first, count, scale);
  }
  __syncthreads();
  weigh(shared, heads, num_keys);
  for (int first = 0; first < num_keys; first += kTile) {
    const int count = min(kTile, num_keys - first);
    __syncthreads();
    if (first == 0) add_weights(shared, heads, num_keys);
    fill_values(first, count);
    __syncthreads();
    add_tile(shared, heads, dim, first, count);
  }
}

/// Keys [offset, offset + num_keys) of one cache block.
__device__ inline void attend_block(const Arrays& shared, int heads, int dim, float scale,
                                    const CachePlanes& planes, int kv_head, const std::byte* row,
                                    int offset, int num_keys) {
  const auto fill = [&](const HeadPlanes& plane) {
    return [&](int first, int count) {
      decode_cache_tokens<kTile, kThreads>(plane, kv_head, row, offset + first, count, shared.table,
                                           shared.tile);
    };
  };
  attend(shared, heads, dim, scale, num_keys, fill(planes.k), fill(planes.v));
}

/// out[h][d] for the heads of the group.
__device__ inline void finish(const Arrays& shared, int group, int dim, float* out) {
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < group * dim; i += kThreads) {
    out[i] = shared.outputs[i] / shared.sums[i / dim];
  }
}

}  // namespace winnow::cuda::exact::attention_part
