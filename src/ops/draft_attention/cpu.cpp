// The drafter's attention on the CPU kernels of `attention`. A task is the block of one sequence
// and the query heads of one KV head: K · 16 rows at M3.1's shape, which is what makes one decoding
// of the window's keys serve the whole block. Keys that only some queries of the block are too far
// away from get a score of -inf for those: their weight is then exactly 0, as if left out.
#include <algorithm>
#include <cstring>
#include <limits>

#include "base/assert.h"
#include "ops/attention/cpu_kernel.h"
#include "ops/cost_shares.h"
#include "ops/cpu_ops.h"
#include "ops/draft_attention/draft_attention.h"
#include "ops/op_context.h"

namespace winnow::cpu {
namespace {

using ops::kGroupRows;
using ops::kMaxGroups;
using ops::kValuePartDims;

/// Below this many multiply-adds (some 10 µs of one core) waking other threads costs more.
constexpr std::int64_t kParallelWork = std::int64_t{1} << 19;

constexpr std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

/// Sizes that all tasks of a call share.
struct Sizes {
  std::int64_t part_keys;  // of a cache block or of the block itself, whichever is more
  std::int64_t dim;
  std::int64_t padded_dim;  // to 16
  std::int64_t value_floats;
  std::int64_t heads;   // query heads of a KV head
  std::int64_t groups;  // of 16 rows, in the longest block

  Sizes(const ops::DraftAttentionParams& params, std::int64_t block)
      : part_keys(std::max<std::int64_t>(params.cache.layout->shape().block_tokens, block)),
        dim(params.shape.head_dim),
        padded_dim(round_up(dim, kGroupRows)),
        value_floats(round_up(dim, kValuePartDims) * part_keys),
        heads(params.shape.num_heads / params.shape.num_kv_heads),
        groups((block * heads + kGroupRows - 1) / kGroupRows) {}
};

/// One thread's arrays.
struct Workspace {
  float* keys = nullptr;     // [part_keys][dim]
  float* values = nullptr;   // [part of 64 dims][part_keys][64]
  float* vector = nullptr;   // [dim]
  float* scores = nullptr;   // [kMaxGroups][part_keys][16]
  float* queries = nullptr;  // [groups][dim][16]
  float* outputs = nullptr;  // [groups][16][padded_dim]
  float* maxima = nullptr;   // [groups][16]
  float* sums = nullptr;
  float* carries = nullptr;        // [16]
  std::int32_t* hidden = nullptr;  // [groups][16] keys of the part before the row's window
  std::int32_t* limits = nullptr;  // [groups][16]

  Workspace(const Sizes& sizes, ops::Scratch& scratch)
      : keys(scratch.take_array<float>(sizes.part_keys * sizes.dim)),
        values(scratch.take_array<float>(sizes.value_floats)),
        vector(scratch.take_array<float>(sizes.dim)),
        scores(scratch.take_array<float>(kMaxGroups * sizes.part_keys * kGroupRows)),
        queries(scratch.take_array<float>(sizes.groups * sizes.dim * kGroupRows)),
        outputs(scratch.take_array<float>(sizes.groups * kGroupRows * sizes.padded_dim)),
        maxima(scratch.take_array<float>(sizes.groups * kGroupRows)),
        sums(scratch.take_array<float>(sizes.groups * kGroupRows)),
        carries(scratch.take_array<float>(kGroupRows)),
        hidden(scratch.take_array<std::int32_t>(sizes.groups * kGroupRows)),
        limits(scratch.take_array<std::int32_t>(sizes.groups * kGroupRows)) {
    // Dims between head_dim and its padding are computed and dropped: give them plain numbers.
    if (sizes.dim != sizes.padded_dim) std::fill_n(values, sizes.value_floats, 0.0F);
  }
};

class BlockAttention {
 public:
  BlockAttention(const Kernels& kernels, const ops::DraftAttentionParams& params,
                 const Sizes& sizes, const ops::SequenceSlice& slice, std::int32_t kv_head,
                 const Workspace& work)
      : kernels_(*kernels.table.attention),
        codecs_(kernels.codecs),
        params_(params),
        sizes_(sizes),
        slice_(slice),
        kv_head_(kv_head),
        work_(work),
        num_rows_(slice.num_tokens * sizes.heads),
        num_groups_((num_rows_ + kGroupRows - 1) / kGroupRows) {}

  void run() const {
    const std::int64_t padded_rows = num_groups_ * kGroupRows;
    std::fill_n(work_.maxima, padded_rows, -std::numeric_limits<float>::infinity());
    std::fill_n(work_.sums, padded_rows, 0.0F);
    std::fill_n(work_.outputs, padded_rows * sizes_.padded_dim, 0.0F);
    std::fill_n(work_.limits, padded_rows, 0);
    std::fill_n(work_.hidden, padded_rows, 0);
    transpose_queries();
    const std::int32_t block_tokens = params_.cache.layout->shape().block_tokens;
    const std::int32_t end = slice_.first_position;
    for (std::int32_t p = visible_from(0); p < end;) {
      const std::int32_t part_end = std::min(end, (p / block_tokens + 1) * block_tokens);
      decode(p, part_end);
      set_limits(p, part_end);
      attend(part_end - p);
      p = part_end;
    }
    copy_own();
    std::fill_n(work_.hidden, num_rows_, 0);
    std::fill_n(work_.limits, num_rows_, slice_.num_tokens);
    attend(slice_.num_tokens);
    for (std::int64_t row = 0; row < num_rows_; ++row) {
      const std::int64_t head =
          (slice_.first_token + row / sizes_.heads) * params_.shape.num_heads +
          kv_head_ * sizes_.heads + row % sizes_.heads;
      kernels_.divide(work_.outputs + row * sizes_.padded_dim, work_.sums[row], sizes_.dim,
                      params_.out + head * sizes_.dim);
    }
  }

 private:
  std::int32_t visible_from(std::int64_t j) const {
    return ops::first_visible(slice_.first_position + static_cast<std::int32_t>(j), params_.window);
  }

  const float* row_of(std::int64_t j) const {
    const std::int64_t width =
        (params_.shape.num_heads + 2 * params_.shape.num_kv_heads) * sizes_.dim;
    return params_.qkv + (slice_.first_token + j) * width;
  }

  void transpose_queries() const {
    for (std::int64_t group = 0; group < num_groups_; ++group) {
      const float* rows[kGroupRows] = {};
      for (std::int64_t i = 0; i < kGroupRows; ++i) {
        const std::int64_t row = group * kGroupRows + i;
        if (row >= num_rows_) break;
        rows[i] = row_of(row / sizes_.heads) +
                  (kv_head_ * sizes_.heads + row % sizes_.heads) * sizes_.dim;
      }
      kernels_.transpose(rows, sizes_.dim, work_.queries + group * sizes_.dim * kGroupRows);
    }
  }

  void set_value(std::int64_t t, const float* v) const {
    for (std::int64_t d = 0; d < sizes_.dim; d += kValuePartDims) {
      std::memcpy(work_.values + d * sizes_.part_keys + t * kValuePartDims, v + d,
                  static_cast<std::size_t>(std::min<std::int64_t>(kValuePartDims, sizes_.dim - d)) *
                      sizeof(float));
    }
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
    const int slot = first % block_tokens;
    const auto count = static_cast<std::size_t>((end - first) * sizes_.dim);
    decode_cache_vector(k.dtype, DequantMode::kExact, k.data(row, slot), nullptr,
                        {work_.keys, count}, codecs_);
    for (std::int32_t t = 0; t < end - first; ++t) {
      decode_cache_vector(v.dtype, DequantMode::kExact, v.data(row, slot + t), nullptr,
                          {work_.vector, static_cast<std::size_t>(sizes_.dim)}, codecs_);
      set_value(t, work_.vector);
    }
  }

  void set_limits(std::int32_t first, std::int32_t end) const {
    for (std::int64_t j = 0; j < slice_.num_tokens; ++j) {
      const std::int32_t hidden = std::clamp(visible_from(j) - first, 0, end - first);
      std::fill_n(work_.hidden + j * sizes_.heads, sizes_.heads, hidden);
      std::fill_n(work_.limits + j * sizes_.heads, sizes_.heads,
                  hidden == end - first ? 0 : end - first);
    }
  }

  void copy_own() const {
    const ops::AttentionShape& shape = params_.shape;
    for (std::int32_t j = 0; j < slice_.num_tokens; ++j) {
      const float* const k = row_of(j) + (shape.num_heads + kv_head_) * sizes_.dim;
      std::memcpy(work_.keys + j * sizes_.dim, k,
                  static_cast<std::size_t>(sizes_.dim) * sizeof(float));
      set_value(j, k + shape.num_kv_heads * sizes_.dim);
    }
  }

  bool reads(std::int64_t group) const {
    const std::int32_t* const limits = work_.limits + group * kGroupRows;
    return std::any_of(limits, limits + kGroupRows, [](std::int32_t limit) { return limit > 0; });
  }

  /// The part in hand, for every group that reads it, a few groups at a time.
  void attend(std::int64_t num_keys) const {
    std::int64_t groups[kMaxGroups];
    int count = 0;
    for (std::int64_t group = 0; group < num_groups_; ++group) {
      if (reads(group)) groups[count++] = group;
      if (count == kMaxGroups || (count > 0 && group + 1 == num_groups_)) {
        attend_groups(groups, count, num_keys);
        count = 0;
      }
    }
  }

  void attend_groups(const std::int64_t* groups, int count, std::int64_t num_keys) const {
    ops::ScoreTask task{.queries = {},
                        .num_groups = count,
                        .keys = work_.keys,
                        .num_keys = num_keys,
                        .dim = sizes_.dim,
                        .scale = params_.scale,
                        .scores = {}};
    for (int i = 0; i < count; ++i) {
      task.queries[i] = work_.queries + groups[i] * sizes_.dim * kGroupRows;
      task.scores[i] = work_.scores + i * sizes_.part_keys * kGroupRows;
    }
    kernels_.score(task);
    for (int i = 0; i < count; ++i) add_group(groups[i], num_keys, task.scores[i]);
  }

  void add_group(std::int64_t group, std::int64_t num_keys, float* scores) const {
    const std::int64_t row = group * kGroupRows;
    for (std::int64_t i = 0; i < kGroupRows; ++i) {
      for (std::int32_t t = 0; t < work_.hidden[row + i]; ++t) {
        scores[t * kGroupRows + i] = -std::numeric_limits<float>::infinity();
      }
    }
    kernels_.softmax({.scores = scores,
                      .num_keys = num_keys,
                      .limits = work_.limits + row,
                      .maxima = work_.maxima + row,
                      .sums = work_.sums + row,
                      .carries = work_.carries});
    kernels_.add_values({.weights = scores,
                         .limits = work_.limits + row,
                         .carries = work_.carries,
                         .values = work_.values,
                         .block_tokens = sizes_.part_keys,
                         .dim = sizes_.padded_dim,
                         .outputs = work_.outputs + row * sizes_.padded_dim});
  }

  const ops::AttentionKernels& kernels_;
  const BulkCodecs& codecs_;
  const ops::DraftAttentionParams& params_;
  const Sizes& sizes_;
  const ops::SequenceSlice& slice_;
  std::int32_t kv_head_;
  const Workspace& work_;
  std::int64_t num_rows_;
  std::int64_t num_groups_;
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
  const Sizes sizes(params, most);
  const bool in_caller = total_keys * params.shape.num_heads * sizes.dim * 2 < kParallelWork;
  const int num_threads = in_caller ? 1 : context.pool->num_threads();
  auto* const work = scratch.take_array<Workspace>(num_threads);
  for (int i = 0; i < num_threads; ++i) work[i] = Workspace(sizes, scratch);
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
