#include "ops/attention/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "ops/fast_exp.h"
#include "ops/op_context.h"
#include "ops/scalar_ops.h"
#include "ops/target_clones.h"
#include "ops/token_chunks.h"

namespace winnow::scalar {
namespace {

constexpr std::int32_t kChunkTokens = 32;  // queries that share the decoding of a block
constexpr std::int32_t kLanes = 64;        // independent outputs of an inner loop

constexpr std::int64_t round_up(std::int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

/// scores[t] = (Σ_d q[d] · keys[d][t]) · scale for t < num_keys, each sum one chain in ascending d.
/// Rows of `keys` are `stride` (a multiple of kLanes) apart.
WINNOW_FMA_CLONES
void score_keys(const float* q, const float* keys, std::int64_t stride, std::int32_t dim,
                std::int32_t num_keys, float scale, float* scores) {
  for (std::int32_t first = 0; first < num_keys; first += kLanes) {
    std::array<float, kLanes> sums{};
    for (std::int32_t d = 0; d < dim; ++d) {
      const float* const row = keys + d * stride + first;
      for (std::size_t i = 0; i < kLanes; ++i) sums[i] = std::fma(q[d], row[i], sums[i]);
    }
    for (std::size_t i = 0; i < kLanes; ++i) scores[first + static_cast<int>(i)] = sums[i] * scale;
  }
}

/// out[d] = fma(p[t], values[t][d], …) over ascending t, from out[d] · carry.
WINNOW_FMA_CLONES
void add_values(const float* p, const float* values, std::int64_t stride, std::int32_t num_keys,
                float carry, float* out) {
  for (std::int64_t first = 0; first < stride; first += kLanes) {
    std::array<float, kLanes> sums;
    for (std::size_t i = 0; i < kLanes; ++i) sums[i] = out[first + static_cast<int>(i)] * carry;
    for (std::int32_t t = 0; t < num_keys; ++t) {
      const float* const row = values + t * stride + first;
      for (std::size_t i = 0; i < kLanes; ++i) sums[i] = std::fma(p[t], row[i], sums[i]);
    }
    for (std::size_t i = 0; i < kLanes; ++i) out[first + static_cast<int>(i)] = sums[i];
  }
}

WINNOW_FMA_CLONES
void exponentiate(float* scores, std::int32_t count, float maximum) {
  for (std::int32_t t = 0; t < count; ++t) scores[t] = ops::fast_exp(scores[t] - maximum);
}

/// Running softmax of one query head.
struct State {
  float maximum = -std::numeric_limits<float>::infinity();
  float sum = 0.0F;
};

struct Workspace {
  float* keys = nullptr;     // [head_dim][block stride]: one block of K, transposed
  float* values = nullptr;   // [block_tokens][dim stride]
  float* vector = nullptr;   // [head_dim]
  float* scores = nullptr;   // [block stride]
  float* outputs = nullptr;  // [kChunkTokens][heads of the group][dim stride]
  State* states = nullptr;   // [kChunkTokens][heads of the group]
};

/// One chunk of queries and the query heads of one KV head.
class GroupAttention {
 public:
  GroupAttention(const ops::AttentionParams& params, const ops::TokenChunk& chunk,
                 std::int32_t kv_head, const Workspace& work)
      : params_(params),
        shape_(params.shape),
        chunk_(chunk),
        kv_head_(kv_head),
        group_(shape_.num_heads / shape_.num_kv_heads),
        block_tokens_(params.cache.layout->shape().block_tokens),
        block_stride_(round_up(block_tokens_)),
        dim_stride_(round_up(shape_.head_dim)),
        work_(work) {}

  void run() const {
    std::fill_n(work_.states, chunk_.num_tokens * group_, State{});
    std::fill_n(work_.outputs, chunk_.num_tokens * group_ * dim_stride_, 0.0F);
    std::array<std::int32_t, kChunkTokens> next{};  // first unread entry of each token's list
    const std::int32_t last_position = position(chunk_.num_tokens - 1);
    for (std::int32_t b = 0; b <= last_position / block_tokens_; ++b) {
      bool is_decoded = false;
      for (std::int32_t t = 0; t < chunk_.num_tokens; ++t) {
        if (!reads_block(t, b, next[static_cast<std::size_t>(t)])) continue;
        if (!is_decoded)
          decode_block(b, std::min(block_tokens_, last_position - b * block_tokens_ + 1));
        is_decoded = true;
        attend(t, std::min(block_tokens_, position(t) - b * block_tokens_ + 1));
      }
    }
    for (std::int32_t t = 0; t < chunk_.num_tokens; ++t) write(t);
  }

 private:
  std::int32_t position(std::int32_t t) const { return chunk_.first_position + t; }

  bool reads_block(std::int32_t t, std::int32_t b, std::int32_t& next) const {
    if (params_.blocks == nullptr) return b <= position(t) / block_tokens_;
    const std::int64_t list =
        (std::int64_t{chunk_.first_token} + t) * shape_.num_index_heads + kv_head_;
    if (next >= shape_.top_k_blocks) return false;
    if (params_.blocks[list * shape_.top_k_blocks + next] != b) return false;
    ++next;
    return true;
  }

  void decode_block(std::int32_t b, std::int32_t num_keys) const {
    const CacheRowLayout& layout = *params_.cache.layout;
    const auto& slice = params_.batch.sequences[static_cast<std::size_t>(chunk_.sequence)];
    const std::byte* const row =
        params_.cache.pool + std::int64_t{slice.block_table[b]} * layout.row_bytes();
    const CachePlane k = layout.k(params_.layer, kv_head_);
    const CachePlane v = layout.v(params_.layer, kv_head_);
    const auto dim = static_cast<std::size_t>(shape_.head_dim);
    for (std::int32_t t = 0; t < num_keys; ++t) {
      decode_cache_vector(k.dtype, params_.cache.mode, k.data(row, t), k.scales(row, t),
                          std::span(work_.vector, dim), kScalarCodecs);
      for (std::size_t d = 0; d < dim; ++d) {
        work_.keys[static_cast<std::int64_t>(d) * block_stride_ + t] = work_.vector[d];
      }
      decode_cache_vector(v.dtype, params_.cache.mode, v.data(row, t), v.scales(row, t),
                          std::span(work_.values + t * dim_stride_, dim), kScalarCodecs);
    }
  }

  /// Adds the first `num_keys` keys of the decoded block to each head of token t.
  void attend(std::int32_t t, std::int32_t num_keys) const {
    for (std::int32_t n = 0; n < group_; ++n) {
      State& state = work_.states[t * group_ + n];
      score_keys(query(t, n), work_.keys, block_stride_, shape_.head_dim, num_keys, params_.scale,
                 work_.scores);
      float maximum = state.maximum;
      for (std::int32_t i = 0; i < num_keys; ++i) maximum = std::max(maximum, work_.scores[i]);
      exponentiate(work_.scores, num_keys, maximum);
      const float carry = ops::fast_exp(state.maximum - maximum);
      state.sum *= carry;
      for (std::int32_t i = 0; i < num_keys; ++i) state.sum += work_.scores[i];
      state.maximum = maximum;
      add_values(work_.scores, work_.values, dim_stride_, num_keys, carry, output(t, n));
    }
  }

  void write(std::int32_t t) const {
    for (std::int32_t n = 0; n < group_; ++n) {
      const float sum = work_.states[t * group_ + n].sum;
      float* const out = params_.out + head_row(t, n) * shape_.head_dim;
      for (std::int32_t d = 0; d < shape_.head_dim; ++d) out[d] = output(t, n)[d] / sum;
    }
  }

  std::int64_t head_row(std::int32_t t, std::int32_t n) const {
    return (std::int64_t{chunk_.first_token} + t) * shape_.num_heads + kv_head_ * group_ + n;
  }
  const float* query(std::int32_t t, std::int32_t n) const {
    return params_.q + head_row(t, n) * shape_.head_dim;
  }
  float* output(std::int32_t t, std::int32_t n) const {
    return work_.outputs + (t * group_ + n) * dim_stride_;
  }

  const ops::AttentionParams& params_;
  const ops::AttentionShape& shape_;
  const ops::TokenChunk& chunk_;
  std::int32_t kv_head_;
  std::int32_t group_;
  std::int32_t block_tokens_;
  std::int64_t block_stride_;
  std::int64_t dim_stride_;
  Workspace work_;
};

/// One workspace per thread.
Workspace take_workspace(const ops::AttentionParams& params, ops::Scratch& scratch) {
  const std::int64_t block_tokens = params.cache.layout->shape().block_tokens;
  const std::int64_t block_stride = round_up(block_tokens);
  const std::int64_t dim_stride = round_up(params.shape.head_dim);
  const std::int64_t rows =
      kChunkTokens * std::int64_t{params.shape.num_heads / params.shape.num_kv_heads};
  Workspace work{.keys = scratch.take_array<float>(params.shape.head_dim * block_stride),
                 .values = scratch.take_array<float>(block_tokens * dim_stride),
                 .vector = scratch.take_array<float>(params.shape.head_dim),
                 .scores = scratch.take_array<float>(block_stride),
                 .outputs = scratch.take_array<float>(rows * dim_stride),
                 .states = scratch.take_array<State>(rows)};
  // Lanes beyond head_dim and beyond the keys are computed and dropped: give them plain numbers.
  std::fill_n(work.keys, params.shape.head_dim * block_stride, 0.0F);
  std::fill_n(work.values, block_tokens * dim_stride, 0.0F);
  return work;
}

}  // namespace

void attention(const ops::OpContext& context, const ops::AttentionParams& params) {
  const auto chunks = ops::split_batch(params.batch, kChunkTokens, *context.scratch);
  const auto num_threads = static_cast<std::size_t>(context.pool->num_threads());
  Workspace* const work =
      context.scratch->take_array<Workspace>(static_cast<std::int64_t>(num_threads));
  for (std::size_t i = 0; i < num_threads; ++i) work[i] = take_workspace(params, *context.scratch);
  const std::int64_t num_kv_heads = params.shape.num_kv_heads;
  context.pool->parallel_for(std::ssize(chunks) * num_kv_heads, [&](std::int64_t task, int thread) {
    const ops::TokenChunk& chunk = chunks[static_cast<std::size_t>(task / num_kv_heads)];
    GroupAttention(params, chunk, static_cast<std::int32_t>(task % num_kv_heads), work[thread])
        .run();
  });
  context.scratch->reset();
}

}  // namespace winnow::scalar
