// Block scores by one CUDA block for each (block of keys, few tokens), spilled to scratch; then a
// warp for each (token, index head) picks the best, one at a time.
#include <algorithm>

#include "ops/cuda/check.h"
#include "ops/cuda/codecs.cuh"
#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/index_topk/index_topk.h"
#include "ops/op_context.h"

namespace winnow::cuda::exact {
namespace {

constexpr int kKeys = 64;    // decoded at once, a thread each
constexpr int kTokens = 8;   // of a block: those of one sequence share decoded keys
constexpr int kQueries = 4;  // index heads that a thread scores together
constexpr unsigned kWholeWarp = 0xFFFFFFFFU;

struct ScoreParams {
  const float* index_q = nullptr;
  ops::AttentionShape shape;
  DeviceBatch batch;
  CachePlanes planes;
  std::int32_t first_token = 0;  // of the chunk
  std::int32_t num_tokens = 0;
  std::int32_t num_blocks = 0;  // a bound for every token
  float* scores = nullptr;      // [tokens of the chunk][num_index_heads][num_blocks]
};

/// Σ_d q[d][j] · key[d] for four queries, each in 16 lanes joined pairwise.
__device__ void dot_queries(const float4* q, const float* key, int dim, float (&out)[kQueries]) {
  float lanes[kQueries][16] = {};
  for (int begin = 0; begin < dim; begin += 16) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      if (begin + i < dim) {
        const float4 at = q[begin + i];
        const float k = key[begin + i];
        lanes[0][i] = fmaf(at.x, k, lanes[0][i]);
        lanes[1][i] = fmaf(at.y, k, lanes[1][i]);
        lanes[2][i] = fmaf(at.z, k, lanes[2][i]);
        lanes[3][i] = fmaf(at.w, k, lanes[3][i]);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kQueries; ++j) {
#pragma unroll
    for (int i = 0; i < 8; ++i) lanes[j][i] += lanes[j][i + 8];
#pragma unroll
    for (int i = 0; i < 4; ++i) lanes[j][i] += lanes[j][i + 4];
    lanes[j][0] += lanes[j][2];
    lanes[j][1] += lanes[j][3];
    lanes[j][0] += lanes[j][1];
    out[j] = lanes[j][0];
  }
}

struct ScoreShared {
  float table[kNvfp4TableSize];
  float best[2][kQueries];  // of each warp
};

__global__ void __launch_bounds__(kKeys) exact_score_blocks(ScoreParams params) {
  __shared__ ScoreShared shared;
  extern __shared__ float4 dynamic[];
  const ops::AttentionShape& shape = params.shape;
  const int dim = shape.index_head_dim;
  float4* const query = dynamic;                                // [dim]
  float* const keys = reinterpret_cast<float*>(dynamic + dim);  // [kKeys][dim + 1]
  const int thread = static_cast<int>(threadIdx.x);
  const auto block = static_cast<std::int32_t>(blockIdx.x);
  const int block_tokens = params.planes.block_tokens;
  const std::int32_t begin = block * block_tokens;
  const std::int32_t first = static_cast<std::int32_t>(blockIdx.y) * kTokens;
  const std::int32_t last = min(first + kTokens, params.num_tokens);
  if (params.planes.index_k.dtype == CacheDType::kNvfp4) {
    fill_nvfp4_table(shared.table, params.planes.mode);
  }
  for (int tile = 0; tile < block_tokens; tile += kKeys) {
    std::int32_t decoded_row = -1;
    int decoded = 0;
    for (std::int32_t t = first; t < last; ++t) {
      const std::int32_t token = params.first_token + t;
      const std::int32_t position = params.batch.positions[token];
      // Slots after the token's own position were never written.
      const int num_keys = min(min(position - begin + 1, block_tokens) - tile, kKeys);
      if (num_keys <= 0) continue;
      const std::int32_t row = params.batch.pool_row(token, block);
      if (row != decoded_row || decoded < num_keys) {
        __syncthreads();
        decode_cache_tokens<kKeys, kKeys>(params.planes.index_k, 0, params.planes.row(row), tile,
                                          num_keys, shared.table, keys);
        decoded_row = row;
        decoded = num_keys;
      }
      for (int g = 0; g < shape.num_index_heads; g += kQueries) {
        __syncthreads();
        const float* const q =
            params.index_q + (std::int64_t{token} * shape.num_index_heads + g) * dim;
        for (int i = thread; i < dim * kQueries; i += kKeys) {
          const int j = i / dim;
          const int d = i - j * dim;
          reinterpret_cast<float*>(query + d)[j] = g + j < shape.num_index_heads ? q[i] : 0.0F;
        }
        __syncthreads();
        float best[kQueries];
        if (thread < num_keys) {
          dot_queries(query, keys + thread * (dim + 1), dim, best);
        } else {
          for (float& x : best) x = -INFINITY;
        }
#pragma unroll
        for (int j = 0; j < kQueries; ++j) {
          best[j] = fmaxf(best[j], -INFINITY);  // drops NaN
          for (int step = 16; step > 0; step /= 2) {
            best[j] = fmaxf(best[j], __shfl_xor_sync(kWholeWarp, best[j], step));
          }
          if (thread % 32 == 0) shared.best[thread / 32][j] = best[j];
        }
        __syncthreads();
        if (thread < kQueries && g + thread < shape.num_index_heads) {
          float* const out =
              params.scores +
              (std::int64_t{t} * shape.num_index_heads + g + thread) * params.num_blocks + block;
          const float score = fmaxf(shared.best[0][thread], shared.best[1][thread]);
          *out = tile == 0 ? score : fmaxf(*out, score);
        }
      }
    }
  }
}

/// A block that might be chosen, in the order of the contract: forced ones first, then by score,
/// then by number.
struct Candidate {
  int precedence = 3;  // 0 local, 1 initial, 2 by its score, 3 none
  float score = 0.0F;
  std::int32_t block = 0;

  __device__ bool is_before(const Candidate& other) const {
    if (precedence != other.precedence) return precedence < other.precedence;
    if (precedence == 2 && score != other.score) return score > other.score;
    return block < other.block;
  }
};

struct SelectParams {
  ops::AttentionShape shape;
  DeviceBatch batch;
  std::int32_t block_tokens = 0;
  std::int32_t first_token = 0;
  std::int32_t num_blocks = 0;
  const float* scores = nullptr;
  std::int32_t* blocks = nullptr;
};

__device__ Candidate candidate(const SelectParams& params, const float* scores, std::int32_t block,
                               std::int32_t last_block) {
  if (block > last_block - params.shape.local_blocks) return {0, 0.0F, block};
  if (block < params.shape.init_blocks) return {1, 0.0F, block};
  const float score = scores[block];
  return {score == -INFINITY ? 3 : 2, score, block};
}

/// One warp for each (token, index head). The order is total, so the next choice is the first of
/// those after the last one.
__global__ void exact_select_blocks(SelectParams params) {
  const auto lane = static_cast<std::int32_t>(threadIdx.x);
  const auto t = static_cast<std::int32_t>(blockIdx.x);
  const auto g = static_cast<std::int32_t>(blockIdx.y);
  const ops::AttentionShape& shape = params.shape;
  const std::int32_t token = params.first_token + t;
  const std::int32_t last_block = params.batch.positions[token] / params.block_tokens;
  const float* const scores =
      params.scores + (std::int64_t{t} * shape.num_index_heads + g) * params.num_blocks;
  std::int32_t* const out =
      params.blocks + (std::int64_t{token} * shape.num_index_heads + g) * shape.top_k_blocks;
  Candidate chosen{-1, 0.0F, -1};
  std::int32_t count = 0;
  for (; count < shape.top_k_blocks; ++count) {
    Candidate best;
    for (std::int32_t b = lane; b <= last_block; b += 32) {
      const Candidate c = candidate(params, scores, b, last_block);
      if (chosen.is_before(c) && c.is_before(best)) best = c;
    }
    for (int step = 16; step > 0; step /= 2) {
      const Candidate other{__shfl_xor_sync(kWholeWarp, best.precedence, step),
                            __shfl_xor_sync(kWholeWarp, best.score, step),
                            __shfl_xor_sync(kWholeWarp, best.block, step)};
      if (other.is_before(best)) best = other;
    }
    if (best.precedence == 3) break;
    chosen = best;
    if (lane == 0) out[count] = best.block;
  }
  if (lane != 0) return;
  for (std::int32_t i = 1; i < count; ++i) {
    const std::int32_t block = out[i];
    std::int32_t at = i;
    for (; at > 0 && out[at - 1] > block; --at) out[at] = out[at - 1];
    out[at] = block;
  }
  for (std::int32_t i = count; i < shape.top_k_blocks; ++i) out[i] = -1;
}

}  // namespace

void index_topk(const ops::OpContext& context, const ops::IndexTopkParams& params) {
  if (params.batch.num_tokens == 0) return;
  const ops::AttentionShape& shape = params.shape;
  const CachePlanes planes = cache_planes(params.cache, params.layer);
  const std::int32_t num_blocks =
      (params.batch.num_positions + planes.block_tokens - 1) / planes.block_tokens;
  DeviceScratch& scratch = context.cuda->scratch();
  const std::int64_t token_floats = std::int64_t{shape.num_index_heads} * num_blocks;
  const std::int64_t chunk =
      std::clamp<std::int64_t>(scratch.num_bytes() / (token_floats * std::int64_t{sizeof(float)}),
                               1, params.batch.num_tokens);
  float* const scores = scratch.take_array<float>(chunk * token_floats);
  const auto dim = static_cast<std::size_t>(shape.index_head_dim);
  const std::size_t shared = (dim * kQueries + kKeys * (dim + 1)) * sizeof(float);
  check(cudaFuncSetAttribute(exact_score_blocks, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared)),
        "index_topk: shared memory");
  for (std::int64_t first = 0; first < params.batch.num_tokens; first += chunk) {
    const auto count = static_cast<std::int32_t>(std::min(chunk, params.batch.num_tokens - first));
    const ScoreParams score{.index_q = params.index_q,
                            .shape = shape,
                            .batch = device_batch(params.batch),
                            .planes = planes,
                            .first_token = static_cast<std::int32_t>(first),
                            .num_tokens = count,
                            .num_blocks = num_blocks,
                            .scores = scores};
    const dim3 tiles(static_cast<unsigned>(num_blocks),
                     static_cast<unsigned>((count + kTokens - 1) / kTokens));
    exact_score_blocks<<<tiles, kKeys, shared, context.cuda->stream()>>>(score);
    check_launch("index_topk: scores");
    const SelectParams select{.shape = shape,
                              .batch = score.batch,
                              .block_tokens = planes.block_tokens,
                              .first_token = score.first_token,
                              .num_blocks = num_blocks,
                              .scores = scores,
                              .blocks = params.blocks};
    exact_select_blocks<<<dim3(static_cast<unsigned>(count),
                               static_cast<unsigned>(shape.num_index_heads)),
                          32, 0, context.cuda->stream()>>>(select);
    check_launch("index_topk: selection");
  }
  scratch.reset();
}

}  // namespace winnow::cuda::exact
