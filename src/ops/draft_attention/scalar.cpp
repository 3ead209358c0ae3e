#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "base/assert.h"
#include "formats/bulk_codecs.h"
#include "ops/draft_attention/draft_attention.h"
#include "ops/fast_exp.h"
#include "ops/op_context.h"
#include "ops/scalar_ops.h"
#include "ops/target_clones.h"

namespace winnow::scalar {
namespace {

WINNOW_FMA_CLONES
float dot(const float* q, const float* k, std::int32_t dim) {
  float sum = 0.0F;
  for (std::int32_t d = 0; d < dim; ++d) sum = std::fma(q[d], k[d], sum);
  return sum;
}

WINNOW_FMA_CLONES
void add_scaled(float p, const float* v, std::int32_t dim, float* out) {
  for (std::int32_t d = 0; d < dim; ++d) out[d] = std::fma(p, v[d], out[d]);
}

/// One thread's arrays, for as many keys as a part may have.
struct Workspace {
  float* keys = nullptr;     // [part][head_dim]
  float* values = nullptr;   // [part][head_dim]
  float* scores = nullptr;   // [part]
  float* outputs = nullptr;  // [block][heads of the group][head_dim]
  float* maxima = nullptr;   // [block][heads of the group]
  float* sums = nullptr;
};

/// The block of one sequence and the query heads of one KV head.
class BlockAttention {
 public:
  BlockAttention(const ops::DraftAttentionParams& params, std::size_t sequence,
                 std::int32_t kv_head, const Workspace& work)
      : params_(params),
        slice_(params.batch.sequences[sequence]),
        kv_head_(kv_head),
        group_(params.shape.num_heads / params.shape.num_kv_heads),
        dim_(params.shape.head_dim),
        work_(work) {}

  void run() const {
    const std::int64_t rows = std::int64_t{slice_.num_tokens} * group_;
    std::fill_n(work_.maxima, rows, -std::numeric_limits<float>::infinity());
    std::fill_n(work_.sums, rows, 0.0F);
    std::fill_n(work_.outputs, rows * dim_, 0.0F);
    const std::int32_t block_tokens = params_.cache.layout->shape().block_tokens;
    const std::int32_t end = slice_.first_position;
    for (std::int32_t p = visible_from(0); p < end;) {
      const std::int32_t part_end = std::min(end, (p / block_tokens + 1) * block_tokens);
      decode(p, part_end);
      for (std::int32_t j = 0; j < slice_.num_tokens; ++j) {
        attend(j, std::max(visible_from(j) - p, 0), part_end - p);
      }
      p = part_end;
    }
    copy_own();
    for (std::int32_t j = 0; j < slice_.num_tokens; ++j) attend(j, 0, slice_.num_tokens);
    for (std::int32_t j = 0; j < slice_.num_tokens; ++j) write(j);
  }

 private:
  std::int32_t visible_from(std::int32_t j) const {
    return ops::first_visible(slice_.first_position + j, params_.window);
  }

  const float* row_of(std::int32_t j) const {
    const std::int64_t width =
        std::int64_t{params_.shape.num_heads + 2 * params_.shape.num_kv_heads} * dim_;
    return params_.qkv + (std::int64_t{slice_.first_token} + j) * width;
  }

  /// Positions [first, end) of one cache block.
  void decode(std::int32_t first, std::int32_t end) const {
    const CacheRowLayout& layout = *params_.cache.layout;
    const std::int32_t block_tokens = layout.shape().block_tokens;
    const std::byte* const row =
        params_.cache.pool +
        std::int64_t{slice_.block_table[first / block_tokens]} * layout.row_bytes();
    const CachePlane k = layout.drafter_k(params_.layer, kv_head_);
    const CachePlane v = layout.drafter_v(params_.layer, kv_head_);
    const auto dim = static_cast<std::size_t>(dim_);
    for (std::int32_t p = first; p < end; ++p) {
      const int slot = p % block_tokens;
      decode_cache_vector(k.dtype, DequantMode::kExact, k.data(row, slot), nullptr,
                          std::span(work_.keys + (p - first) * dim_, dim), kScalarCodecs);
      decode_cache_vector(v.dtype, DequantMode::kExact, v.data(row, slot), nullptr,
                          std::span(work_.values + (p - first) * dim_, dim), kScalarCodecs);
    }
  }

  void copy_own() const {
    for (std::int32_t j = 0; j < slice_.num_tokens; ++j) {
      const float* const k = row_of(j) + (params_.shape.num_heads + kv_head_) * dim_;
      std::copy_n(k, dim_, work_.keys + j * dim_);
      std::copy_n(k + params_.shape.num_kv_heads * dim_, dim_, work_.values + j * dim_);
    }
  }

  /// Adds keys [first, end) of the part in hand to each head of query j.
  void attend(std::int32_t j, std::int32_t first, std::int32_t end) const {
    if (first >= end) return;
    for (std::int32_t n = 0; n < group_; ++n) {
      const float* const q = row_of(j) + (kv_head_ * group_ + n) * dim_;
      const std::int64_t row = std::int64_t{j} * group_ + n;
      float* const out = work_.outputs + row * dim_;
      float maximum = work_.maxima[row];
      for (std::int32_t t = first; t < end; ++t) {
        work_.scores[t] = dot(q, work_.keys + t * dim_, dim_) * params_.scale;
        maximum = std::max(maximum, work_.scores[t]);
      }
      const float carry = ops::fast_exp(work_.maxima[row] - maximum);
      float sum = work_.sums[row] * carry;
      for (std::int32_t d = 0; d < dim_; ++d) out[d] *= carry;
      for (std::int32_t t = first; t < end; ++t) {
        const float p = ops::fast_exp(work_.scores[t] - maximum);
        sum += p;
        add_scaled(p, work_.values + t * dim_, dim_, out);
      }
      work_.maxima[row] = maximum;
      work_.sums[row] = sum;
    }
  }

  void write(std::int32_t j) const {
    for (std::int32_t n = 0; n < group_; ++n) {
      const std::int64_t row = std::int64_t{j} * group_ + n;
      const std::int64_t head =
          (std::int64_t{slice_.first_token} + j) * params_.shape.num_heads + kv_head_ * group_ + n;
      for (std::int32_t d = 0; d < dim_; ++d) {
        params_.out[head * dim_ + d] = work_.outputs[row * dim_ + d] / work_.sums[row];
      }
    }
  }

  const ops::DraftAttentionParams& params_;
  const ops::SequenceSlice& slice_;
  std::int32_t kv_head_;
  std::int32_t group_;
  std::int32_t dim_;
  Workspace work_;
};

}  // namespace

void draft_attention(const ops::OpContext& context, const ops::DraftAttentionParams& params) {
  const ops::AttentionShape& shape = params.shape;
  std::int32_t most = 0;
  for (const ops::SequenceSlice& slice : params.batch.sequences) {
    most = std::max(most, slice.num_tokens);
  }
  WINNOW_ASSERT(most <= ops::kMaxDraftBlock, "a block of that many tokens", most);
  const std::int64_t part = std::max(most, params.cache.layout->shape().block_tokens);
  const std::int64_t rows = std::int64_t{most} * (shape.num_heads / shape.num_kv_heads);
  ops::Scratch& scratch = *context.scratch;
  const std::int64_t num_threads = context.pool->num_threads();
  Workspace* const work = scratch.take_array<Workspace>(num_threads);
  for (std::int64_t i = 0; i < num_threads; ++i) {
    work[i] = {.keys = scratch.take_array<float>(part * shape.head_dim),
               .values = scratch.take_array<float>(part * shape.head_dim),
               .scores = scratch.take_array<float>(part),
               .outputs = scratch.take_array<float>(rows * shape.head_dim),
               .maxima = scratch.take_array<float>(rows),
               .sums = scratch.take_array<float>(rows)};
  }
  const std::int64_t num_kv_heads = shape.num_kv_heads;
  context.pool->parallel_for(
      std::ssize(params.batch.sequences) * num_kv_heads, [&](std::int64_t task, int thread) {
        BlockAttention(params, static_cast<std::size_t>(task / num_kv_heads),
                       static_cast<std::int32_t>(task % num_kv_heads), work[thread])
            .run();
      });
  scratch.reset();
}

}  // namespace winnow::scalar
