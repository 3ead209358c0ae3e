// The drafter's attention on the CPU kernels of `attention`. A task is the block of one sequence
// and the query heads of one KV head: K · 16 rows at M3.1's shape, which is what makes one decoding
// of the window's keys serve the whole block.
#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "ops/attention/cpu_groups.h"
#include "ops/cost_shares.h"
#include "ops/cpu_ops.h"
#include "ops/draft_attention/draft_attention.h"
#include "ops/op_context.h"

namespace winnow::cpu {
namespace {

class BlockAttention {
 public:
  BlockAttention(const Kernels& kernels, const ops::DraftAttentionParams& params,
                 const GroupSizes& sizes, const ops::SequenceSlice& slice, std::int32_t kv_head,
                 const GroupWorkspace& work)
      : params_(params),
        sizes_(sizes),
        slice_(slice),
        kv_head_(kv_head),
        rows_(kernels, sizes, work, slice.num_tokens, params.scale) {}

  void run() const {
    rows_.begin([this](std::int64_t row) {
      return row_of(row / sizes_.heads) + head_of(row) * sizes_.dim;
    });
    const std::int32_t block_tokens = params_.cache.layout->shape().block_tokens;
    const std::int32_t end = slice_.first_position;
    for (std::int32_t p = visible_from(0); p < end;) {
      const std::int32_t part_end = std::min(end, (p / block_tokens + 1) * block_tokens);
      decode(p, part_end);
      const std::int32_t num_keys = part_end - p;
      for (std::int32_t j = 0; j < slice_.num_tokens; ++j) {
        const std::int32_t hidden = std::clamp(visible_from(j) - p, 0, num_keys);
        rows_.set_limit(j, hidden == num_keys ? 0 : num_keys, hidden);
      }
      rows_.attend();
      p = part_end;
    }
    copy_own();
    for (std::int32_t j = 0; j < slice_.num_tokens; ++j) rows_.set_limit(j, slice_.num_tokens);
    rows_.attend();
    rows_.finish([this](std::int64_t row) {
      const std::int64_t token = slice_.first_token + row / sizes_.heads;
      return params_.out + (token * params_.shape.num_heads + head_of(row)) * sizes_.dim;
    });
  }

 private:
  std::int32_t visible_from(std::int32_t j) const {
    return ops::first_visible(slice_.first_position + j, params_.window);
  }

  std::int64_t head_of(std::int64_t row) const {
    return kv_head_ * sizes_.heads + row % sizes_.heads;
  }

  const float* row_of(std::int64_t j) const {
    const std::int64_t width =
        (params_.shape.num_heads + 2 * params_.shape.num_kv_heads) * sizes_.dim;
    return params_.qkv + (slice_.first_token + j) * width;
  }

  /// Positions [first, end) of one cache block.
  void decode(std::int32_t first, std::int32_t end) const {
    const CacheRowLayout& layout = *params_.cache.layout;
    const std::int32_t block_tokens = layout.shape().block_tokens;
    const std::byte* const row =
        params_.cache.pool +
        std::int64_t{slice_.block_table[first / block_tokens]} * layout.row_bytes();
    rows_.decode(layout.drafter_k(params_.layer, kv_head_),
                 layout.drafter_v(params_.layer, kv_head_), DequantMode::kExact, row,
                 first % block_tokens, end - first);
  }

  void copy_own() const {
    const ops::AttentionShape& shape = params_.shape;
    for (std::int32_t j = 0; j < slice_.num_tokens; ++j) {
      const float* const k = row_of(j) + (shape.num_heads + kv_head_) * sizes_.dim;
      std::memcpy(rows_.keys() + j * sizes_.dim, k,
                  static_cast<std::size_t>(sizes_.dim) * sizeof(float));
      rows_.set_value(j, k + shape.num_kv_heads * sizes_.dim);
    }
  }

  const ops::DraftAttentionParams& params_;
  const GroupSizes& sizes_;
  const ops::SequenceSlice& slice_;
  std::int32_t kv_head_;
  GroupAttention rows_;
};

/// Keys that the block's queries read, summed: what a task costs.
std::int64_t keys_read(const ops::DraftAttentionParams& params, const ops::SequenceSlice& slice) {
  const std::int64_t cached = std::min(slice.first_position, params.window);
  return std::max<std::int64_t>((cached + slice.num_tokens) * slice.num_tokens, 1);
}

}  // namespace

void draft_attention(const Kernels& kernels, const ops::OpContext& context,
                     const ops::DraftAttentionParams& params) {
  ops::Scratch& scratch = *context.scratch;
  std::int32_t most = 0;
  std::int64_t total_keys = 0;
  for (const ops::SequenceSlice& slice : params.batch.sequences) {
    most = std::max(most, slice.num_tokens);
    total_keys += keys_read(params, slice);
  }
  WINNOW_ASSERT(most <= ops::kMaxDraftBlock, "a block of that many tokens", most);
  const GroupSizes sizes(
      params.shape, std::max<std::int64_t>(params.cache.layout->shape().block_tokens, most), most);
  const bool in_caller = total_keys * params.shape.num_heads * sizes.dim * 2 < kParallelAttention;
  const int num_threads = in_caller ? 1 : context.pool->num_threads();
  auto* const work = scratch.take_array<GroupWorkspace>(num_threads);
  for (int i = 0; i < num_threads; ++i) work[i] = GroupWorkspace(sizes, scratch);
  const std::int64_t num_kv_heads = params.shape.num_kv_heads;
  const auto slice_of = [&](std::int64_t task) -> const ops::SequenceSlice& {
    return params.batch.sequences[static_cast<std::size_t>(task / num_kv_heads)];
  };
  run_by_cost(
      *context.pool, std::ssize(params.batch.sequences) * num_kv_heads, in_caller,
      [&](std::int64_t task) { return keys_read(params, slice_of(task)); },
      [&](std::int64_t task, int thread) {
        if (slice_of(task).num_tokens == 0) return;
        BlockAttention(kernels, params, sizes, slice_of(task),
                       static_cast<std::int32_t>(task % num_kv_heads), work[thread])
            .run();
      });
  scratch.reset();
}

}  // namespace winnow::cpu
