// Attention on the CPU kernels. A task is a chunk of one sequence's queries and the query heads of
// one KV head: it walks the blocks that any of its queries reads in ascending order, decodes each
// once, and adds it to the rows that read it. Each row sees its own blocks in ascending order, so
// neither the chunk nor its neighbours can change a bit.
#include "ops/attention/attention.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>

#include "ops/attention/cpu_kernel.h"
#include "ops/cost_shares.h"
#include "ops/cpu_ops.h"
#include "ops/op_context.h"
#include "ops/token_chunks.h"
#include "ops/x86/nvfp4_values.h"

namespace winnow::cpu {
namespace {

using ops::kGroupRows;
using ops::kMaxGroups;
using ops::kValuePartDims;

/// Queries that share the decoding of a block (some 3,000 cycles for keys and values, against
/// 16,000 of arithmetic for one query of 16 heads). State and queries of 64 take 1 MiB at M3's
/// shape.
constexpr std::int32_t kChunkTokens = 64;

/// Below this many multiply-adds (some 10 µs of one core) waking other threads costs more.
constexpr std::int64_t kParallelWork = std::int64_t{1} << 19;

constexpr std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

/// Sizes that all tasks of a call share.
struct Sizes {
  std::int64_t block_tokens;
  std::int64_t dim;
  std::int64_t padded_dim;  // to 16
  std::int64_t value_floats;
  std::int64_t heads;   // query heads of a KV head
  std::int64_t groups;  // of 16 rows, in a full chunk

  Sizes(const ops::AttentionParams& params, std::int64_t chunk_tokens)
      : block_tokens(params.cache.layout->shape().block_tokens),
        dim(params.shape.head_dim),
        padded_dim(round_up(dim, kGroupRows)),
        value_floats(round_up(dim, kValuePartDims) * block_tokens),
        heads(params.shape.num_heads / params.shape.num_kv_heads),
        groups((chunk_tokens * heads + kGroupRows - 1) / kGroupRows) {}
};

/// One thread's arrays.
struct Workspace {
  float* keys = nullptr;     // [block_tokens][dim]
  float* values = nullptr;   // [part][block_tokens][64]
  float* vector = nullptr;   // [dim]
  float* scores = nullptr;   // [kMaxGroups][block_tokens][16]
  float* queries = nullptr;  // [groups][dim][16]
  float* outputs = nullptr;  // [groups][16][padded_dim]
  float* maxima = nullptr;   // [groups][16]
  float* sums = nullptr;
  float* carries = nullptr;        // [16]
  std::int32_t* limits = nullptr;  // [groups][16]
  std::int32_t* next = nullptr;    // [chunk tokens] first unread entry of the token's block list

  Workspace(const Sizes& sizes, ops::Scratch& scratch)
      : keys(scratch.take_array<float>(sizes.block_tokens * sizes.dim)),
        values(scratch.take_array<float>(sizes.value_floats)),
        vector(scratch.take_array<float>(sizes.dim)),
        scores(scratch.take_array<float>(kMaxGroups * sizes.block_tokens * kGroupRows)),
        queries(scratch.take_array<float>(sizes.groups * sizes.dim * kGroupRows)),
        outputs(scratch.take_array<float>(sizes.groups * kGroupRows * sizes.padded_dim)),
        maxima(scratch.take_array<float>(sizes.groups * kGroupRows)),
        sums(scratch.take_array<float>(sizes.groups * kGroupRows)),
        carries(scratch.take_array<float>(kGroupRows)),
        limits(scratch.take_array<std::int32_t>(sizes.groups * kGroupRows)),
        next(scratch.take_array<std::int32_t>(kChunkTokens)) {
    // Dims between head_dim and its padding are computed and dropped: give them plain numbers.
    if (sizes.dim != sizes.padded_dim) std::fill_n(values, sizes.value_floats, 0.0F);
  }
};

class ChunkAttention {
 public:
  ChunkAttention(const Kernels& kernels, const ops::AttentionParams& params, const Sizes& sizes,
                 const ops::TokenChunk& chunk, std::int32_t kv_head, const Workspace& work)
      : kernels_(kernels),
        params_(params),
        sizes_(sizes),
        chunk_(chunk),
        kv_head_(kv_head),
        work_(work),
        num_rows_(chunk.num_tokens * sizes.heads),
        num_groups_((num_rows_ + kGroupRows - 1) / kGroupRows) {}

  void run() const {
    const std::int64_t padded_rows = num_groups_ * kGroupRows;
    std::fill_n(work_.maxima, padded_rows, -std::numeric_limits<float>::infinity());
    std::fill_n(work_.sums, padded_rows, 0.0F);
    std::fill_n(work_.outputs, padded_rows * sizes_.padded_dim, 0.0F);
    std::fill_n(work_.limits, padded_rows, 0);
    std::fill_n(work_.next, chunk_.num_tokens, 0);
    transpose_queries();
    for (std::int32_t block = next_block(-1); block >= 0; block = next_block(block)) {
      std::int32_t num_keys = 0;  // the most that any row reads
      for (std::int32_t t = 0; t < chunk_.num_tokens; ++t) {
        const std::int32_t limit = take_block(t, block);
        num_keys = std::max(num_keys, limit);
        std::fill_n(work_.limits + t * sizes_.heads, sizes_.heads, limit);
      }
      decode(block, num_keys);
      attend();
    }
    for (std::int64_t row = 0; row < num_rows_; ++row) {
      kernels_.table.attention->divide(work_.outputs + row * sizes_.padded_dim, work_.sums[row],
                                       sizes_.dim, params_.out + global_row(row) * sizes_.dim);
    }
  }

 private:
  std::int32_t position(std::int32_t t) const { return chunk_.first_position + t; }

  /// Row of q and out.
  std::int64_t global_row(std::int64_t row) const {
    const std::int64_t token = chunk_.first_token + row / sizes_.heads;
    return token * params_.shape.num_heads + kv_head_ * sizes_.heads + row % sizes_.heads;
  }

  const std::int32_t* list_of(std::int32_t t) const {
    const std::int64_t list =
        (std::int64_t{chunk_.first_token} + t) * params_.shape.num_index_heads + kv_head_;
    return params_.blocks + list * params_.shape.top_k_blocks;
  }

  /// The token's first block that was not taken yet, -1 when there is none.
  std::int32_t unread_block(std::int32_t t) const {
    const std::int32_t at = work_.next[t];
    return at < params_.shape.top_k_blocks ? list_of(t)[at] : -1;
  }

  /// The lowest block after `block` that some token reads, -1 when there is none.
  std::int32_t next_block(std::int32_t block) const {
    if (params_.blocks == nullptr) {
      const auto block_tokens = static_cast<std::int32_t>(sizes_.block_tokens);
      return block < position(chunk_.num_tokens - 1) / block_tokens ? block + 1 : -1;
    }
    std::int32_t lowest = -1;
    for (std::int32_t t = 0; t < chunk_.num_tokens; ++t) {
      const std::int32_t next = unread_block(t);
      if (next >= 0 && (lowest < 0 || next < lowest)) lowest = next;
    }
    return lowest;
  }

  /// How many keys of `block` token t reads; 0 when it does not. Steps past it in its list.
  std::int32_t take_block(std::int32_t t, std::int32_t block) const {
    if (params_.blocks != nullptr) {
      if (unread_block(t) != block) return 0;
      ++work_.next[t];
    }
    const auto block_tokens = static_cast<std::int32_t>(sizes_.block_tokens);
    return std::clamp(position(t) - block * block_tokens + 1, 0, block_tokens);
  }

  void transpose_queries() const {
    for (std::int64_t group = 0; group < num_groups_; ++group) {
      const float* rows[kGroupRows] = {};
      for (std::int64_t i = 0; i < kGroupRows; ++i) {
        const std::int64_t row = group * kGroupRows + i;
        if (row < num_rows_) rows[i] = params_.q + global_row(row) * sizes_.dim;
      }
      kernels_.table.attention->transpose(rows, sizes_.dim,
                                          work_.queries + group * sizes_.dim * kGroupRows);
    }
  }

  void decode(std::int32_t block, std::int64_t num_keys) const {
    const CacheRowLayout& layout = *params_.cache.layout;
    const auto& slice = params_.batch.sequences[static_cast<std::size_t>(chunk_.sequence)];
    const std::byte* const row =
        params_.cache.pool + std::int64_t{slice.block_table[block]} * layout.row_bytes();
    const CachePlane k = layout.k(params_.layer, kv_head_);
    const CachePlane v = layout.v(params_.layer, kv_head_);
    if (k.dtype == CacheDType::kNvfp4) {
      kernels_.table.attention->decode_rows(nvfp4_plane(k, row, num_keys), work_.keys);
      kernels_.table.attention->decode_parts(nvfp4_plane(v, row, num_keys), sizes_.block_tokens,
                                             work_.values);
      return;
    }
    const auto count = static_cast<std::size_t>(num_keys * sizes_.dim);
    decode_cache_vector(k.dtype, params_.cache.mode, k.data(row, 0), nullptr, {work_.keys, count},
                        kernels_.codecs);
    for (std::int32_t t = 0; t < num_keys; ++t) decode_value(v, row, t);
  }

  ops::Nvfp4Plane nvfp4_plane(const CachePlane& plane, const std::byte* row,
                              std::int64_t num_keys) const {
    return {.codes = reinterpret_cast<const std::uint8_t*>(plane.data(row, 0)),
            .scales = reinterpret_cast<const std::uint8_t*>(plane.scales(row, 0)),
            .num_vectors = num_keys,
            .dim = sizes_.dim,
            .table = nvfp4_values(params_.cache.mode)};
  }

  void decode_value(const CachePlane& v, const std::byte* row, std::int32_t t) const {
    decode_cache_vector(v.dtype, params_.cache.mode, v.data(row, t), nullptr,
                        {work_.vector, static_cast<std::size_t>(sizes_.dim)}, kernels_.codecs);
    for (std::int64_t d = 0; d < sizes_.dim; d += kValuePartDims) {
      std::memcpy(work_.values + d * sizes_.block_tokens + t * kValuePartDims, work_.vector + d,
                  static_cast<std::size_t>(std::min<std::int64_t>(kValuePartDims, sizes_.dim - d)) *
                      sizeof(float));
    }
  }

  /// The most keys that a row of the group reads of the current block.
  std::int32_t limit_of(std::int64_t group) const {
    const std::int32_t* const limits = work_.limits + group * kGroupRows;
    return *std::max_element(limits, limits + kGroupRows);
  }

  /// The decoded block, for every group that reads it, a few groups at a time.
  void attend() const {
    std::int64_t groups[kMaxGroups];
    int count = 0;
    for (std::int64_t group = 0; group < num_groups_; ++group) {
      if (limit_of(group) > 0) groups[count++] = group;
      if (count == kMaxGroups || (count > 0 && group + 1 == num_groups_)) {
        attend_groups(groups, count);
        count = 0;
      }
    }
  }

  void attend_groups(const std::int64_t* groups, int count) const {
    ops::ScoreTask task{.queries = {},
                        .num_groups = count,
                        .keys = work_.keys,
                        .num_keys = 0,
                        .dim = sizes_.dim,
                        .scale = params_.scale,
                        .scores = {}};
    for (int i = 0; i < count; ++i) {
      task.queries[i] = work_.queries + groups[i] * sizes_.dim * kGroupRows;
      task.scores[i] = work_.scores + i * sizes_.block_tokens * kGroupRows;
      task.num_keys = std::max<std::int64_t>(task.num_keys, limit_of(groups[i]));
    }
    kernels_.table.attention->score(task);
    for (int i = 0; i < count; ++i) add_group(groups[i], task.scores[i]);
  }

  void add_group(std::int64_t group, float* scores) const {
    const std::int64_t row = group * kGroupRows;
    kernels_.table.attention->softmax({.scores = scores,
                                       .num_keys = limit_of(group),
                                       .limits = work_.limits + row,
                                       .maxima = work_.maxima + row,
                                       .sums = work_.sums + row,
                                       .carries = work_.carries});
    kernels_.table.attention->add_values({.weights = scores,
                                          .limits = work_.limits + row,
                                          .carries = work_.carries,
                                          .values = work_.values,
                                          .block_tokens = sizes_.block_tokens,
                                          .dim = sizes_.padded_dim,
                                          .outputs = work_.outputs + row * sizes_.padded_dim});
  }

  const Kernels& kernels_;
  const ops::AttentionParams& params_;
  const Sizes& sizes_;
  const ops::TokenChunk& chunk_;
  std::int32_t kv_head_;
  const Workspace& work_;
  std::int64_t num_rows_;
  std::int64_t num_groups_;
};

/// Keys that the chunk's queries read, summed: what a task costs.
std::int64_t keys_read(const ops::AttentionParams& params, const Sizes& sizes,
                       const ops::TokenChunk& chunk) {
  const std::int64_t middle = chunk.first_position + chunk.num_tokens / 2 + 1;
  const std::int64_t most = params.blocks == nullptr
                                ? middle
                                : std::min(middle, params.shape.top_k_blocks * sizes.block_tokens);
  return most * chunk.num_tokens;
}

}  // namespace

void attention(const Kernels& kernels, const ops::OpContext& context,
               const ops::AttentionParams& params) {
  ops::Scratch& scratch = *context.scratch;
  const auto chunks = ops::split_batch(params.batch, kChunkTokens, scratch);
  std::int64_t total_keys = 0;
  std::int32_t chunk_tokens = 0;
  for (const ops::TokenChunk& chunk : chunks) {
    chunk_tokens = std::max(chunk_tokens, chunk.num_tokens);
  }
  const Sizes sizes(params, chunk_tokens);
  for (const ops::TokenChunk& chunk : chunks) total_keys += keys_read(params, sizes, chunk);
  const bool in_caller = total_keys * params.shape.num_heads * sizes.dim * 2 < kParallelWork;

  const int num_threads = in_caller ? 1 : context.pool->num_threads();
  auto* const work = scratch.take_array<Workspace>(num_threads);
  for (int i = 0; i < num_threads; ++i) work[i] = Workspace(sizes, scratch);
  const std::int64_t num_kv_heads = params.shape.num_kv_heads;
  const auto chunk_of = [&](std::int64_t task) -> const ops::TokenChunk& {
    return chunks[static_cast<std::size_t>(task / num_kv_heads)];
  };
  run_by_cost(
      *context.pool, std::ssize(chunks) * num_kv_heads, in_caller,
      [&](std::int64_t task) { return keys_read(params, sizes, chunk_of(task)); },
      [&](std::int64_t task, int thread) {
        ChunkAttention(kernels, params, sizes, chunk_of(task),
                       static_cast<std::int32_t>(task % num_kv_heads), work[thread])
            .run();
      });
  scratch.reset();
}

}  // namespace winnow::cpu
