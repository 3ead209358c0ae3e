#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "ops/index_topk/index_topk.h"
#include "ops/op_context.h"
#include "ops/scalar_ops.h"
#include "ops/target_clones.h"
#include "ops/token_chunks.h"

namespace winnow::scalar {
namespace {

constexpr std::int32_t kChunkTokens = 32;  // queries that share the decoding of a block of keys
constexpr int kLanes = 16;

/// Σ_d a[d] · b[d] in 16 lanes, joined as in rms_norm.h.
[[gnu::always_inline]] inline float dot(const float* a, const float* b, std::int32_t dim) {
  std::array<float, kLanes> lanes{};
  std::int32_t begin = 0;
  for (; begin + kLanes <= dim; begin += kLanes) {
    for (int i = 0; i < kLanes; ++i) {
      float& lane = lanes[static_cast<std::size_t>(i)];
      lane = std::fma(a[begin + i], b[begin + i], lane);
    }
  }
  for (std::int32_t d = begin; d < dim; ++d) {
    float& lane = lanes[static_cast<std::size_t>(d - begin)];
    lane = std::fma(a[d], b[d], lane);
  }
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

/// Largest score of `query` among `num_keys` keys; -inf when every one is NaN or -inf.
WINNOW_FMA_CLONES
float best_score(const float* query, const float* keys, std::int32_t num_keys, std::int32_t dim) {
  float best = -std::numeric_limits<float>::infinity();
  for (std::int32_t t = 0; t < num_keys; ++t) {
    const float score = dot(query, keys + std::int64_t{t} * dim, dim);
    if (score > best) best = score;
  }
  return best;
}

struct Selection {
  const ops::AttentionShape& shape;
  std::int32_t last_block = 0;  // the query's own

  /// 0 for a local block, 1 for an initial one, 2 for one that has to win by its score.
  int precedence(std::int32_t block) const {
    if (block > last_block - shape.local_blocks) return 0;
    return block < shape.init_blocks ? 1 : 2;
  }

  bool is_better(std::int32_t a, std::int32_t b, const float* scores) const {
    const int pa = precedence(a);
    const int pb = precedence(b);
    if (pa != pb) return pa < pb;
    return pa == 2 && scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  }

  /// Writes the chosen blocks in ascending order, then -1.
  void select(const float* scores, std::int32_t* out) const {
    std::int32_t count = 0;
    while (count < shape.top_k_blocks) {
      std::int32_t best = -1;
      for (std::int32_t b = 0; b <= last_block; ++b) {
        if (precedence(b) == 2 && scores[b] == -std::numeric_limits<float>::infinity()) continue;
        if (std::find(out, out + count, b) != out + count) continue;
        if (best < 0 || is_better(b, best, scores)) best = b;
      }
      if (best < 0) break;
      out[count++] = best;
    }
    std::sort(out, out + count);
    std::fill(out + count, out + shape.top_k_blocks, -1);
  }
};

/// One chunk of queries against every block up to its last.
class ChunkScorer {
 public:
  ChunkScorer(const ops::IndexTopkParams& params, const ops::TokenChunk& chunk, float* keys,
              float* scores)
      : params_(params),
        chunk_(chunk),
        block_tokens_(params.cache.layout->shape().block_tokens),
        num_blocks_((chunk.first_position + chunk.num_tokens - 1) / block_tokens_ + 1),
        keys_(keys),
        scores_(scores) {}

  void run() const {
    for (std::int32_t b = 0; b < num_blocks_; ++b) score_block(b);
    const ops::AttentionShape& shape = params_.shape;
    for (std::int32_t t = 0; t < chunk_.num_tokens; ++t) {
      const Selection selection{.shape = shape, .last_block = position(t) / block_tokens_};
      for (std::int32_t g = 0; g < shape.num_index_heads; ++g) {
        selection.select(scores(t, g), params_.blocks + row(t, g) * shape.top_k_blocks);
      }
    }
  }

 private:
  std::int32_t position(std::int32_t t) const { return chunk_.first_position + t; }
  std::int64_t row(std::int32_t t, std::int32_t g) const {
    return (std::int64_t{chunk_.first_token} + t) * params_.shape.num_index_heads + g;
  }
  float* scores(std::int32_t t, std::int32_t g) const {
    return scores_ + (std::int64_t{t} * params_.shape.num_index_heads + g) * num_blocks_;
  }

  void score_block(std::int32_t b) const {
    const std::int32_t begin = b * block_tokens_;
    decode_keys(b, std::min(block_tokens_, position(chunk_.num_tokens - 1) - begin + 1));
    const ops::AttentionShape& shape = params_.shape;
    for (std::int32_t t = 0; t < chunk_.num_tokens; ++t) {
      const std::int32_t num_keys = std::clamp(position(t) - begin + 1, 0, block_tokens_);
      for (std::int32_t g = 0; g < shape.num_index_heads; ++g) {
        scores(t, g)[b] = best_score(params_.index_q + row(t, g) * shape.index_head_dim, keys_,
                                     num_keys, shape.index_head_dim);
      }
    }
  }

  void decode_keys(std::int32_t b, std::int32_t num_keys) const {
    const CacheRowLayout& layout = *params_.cache.layout;
    const CachePlane plane = layout.index_k(params_.layer);
    const auto& slice = params_.batch.sequences[static_cast<std::size_t>(chunk_.sequence)];
    const std::byte* const cache_row =
        params_.cache.pool + std::int64_t{slice.block_table[b]} * layout.row_bytes();
    for (std::int32_t t = 0; t < num_keys; ++t) {
      decode_cache_vector(
          plane.dtype, params_.cache.mode, plane.data(cache_row, t), plane.scales(cache_row, t),
          std::span(keys_ + std::int64_t{t} * plane.dim, static_cast<std::size_t>(plane.dim)),
          kScalarCodecs);
    }
  }

  const ops::IndexTopkParams& params_;
  const ops::TokenChunk& chunk_;
  std::int32_t block_tokens_;
  std::int32_t num_blocks_;
  float* keys_;    // [block_tokens][index_head_dim]
  float* scores_;  // [tokens of the chunk][num_index_heads][num_blocks]
};

}  // namespace

void index_topk(const ops::OpContext& context, const ops::IndexTopkParams& params) {
  const std::int32_t block_tokens = params.cache.layout->shape().block_tokens;
  const auto chunks = ops::split_batch(params.batch, kChunkTokens, *context.scratch);
  std::int64_t num_blocks = 0;
  for (const ops::TokenChunk& chunk : chunks) {
    num_blocks = std::max<std::int64_t>(
        num_blocks, (chunk.first_position + chunk.num_tokens - 1) / block_tokens + 1);
  }
  const std::int64_t keys_floats = std::int64_t{block_tokens} * params.shape.index_head_dim;
  const std::int64_t thread_floats =
      keys_floats + kChunkTokens * params.shape.num_index_heads * num_blocks;
  float* const work =
      context.scratch->take_array<float>(thread_floats * context.pool->num_threads());
  context.pool->parallel_for(std::ssize(chunks), [&](std::int64_t task, int thread) {
    float* const keys = work + thread * thread_floats;
    ChunkScorer(params, chunks[static_cast<std::size_t>(task)], keys, keys + keys_floats).run();
  });
  context.scratch->reset();
}

}  // namespace winnow::scalar
