// Attention on the CPU kernels. A task is a chunk of one sequence's queries and the query heads of
// one KV head: it walks the blocks that any of its queries reads in ascending order, decodes each
// once, and adds it to the rows that read it. Each row sees its own blocks in ascending order, so
// neither the chunk nor its neighbours can change a bit.
#include "ops/attention/attention.h"

#include <algorithm>
#include <iterator>

#include "ops/attention/cpu_groups.h"
#include "ops/cost_shares.h"
#include "ops/cpu_ops.h"
#include "ops/op_context.h"
#include "ops/token_chunks.h"
#include "ops/x86/nvfp4_values.h"

namespace winnow::cpu {
namespace {

/// Queries that share the decoding of a block (some 3,000 cycles for keys and values, against
/// 16,000 of arithmetic for one query of 16 heads). State and queries of 64 take 1 MiB at M3's
/// shape.
constexpr std::int32_t kChunkTokens = 64;

/// One thread's arrays.
struct Workspace {
  GroupWorkspace groups;
  std::int32_t* next = nullptr;  // [chunk tokens] first unread entry of the token's block list

  Workspace(const GroupSizes& sizes, ops::Scratch& scratch)
      : groups(sizes, scratch), next(scratch.take_array<std::int32_t>(kChunkTokens)) {}
};

class ChunkAttention {
 public:
  ChunkAttention(const Kernels& kernels, const ops::AttentionParams& params,
                 const GroupSizes& sizes, const ops::TokenChunk& chunk, std::int32_t kv_head,
                 const Workspace& work)
      : kernels_(kernels),
        params_(params),
        sizes_(sizes),
        chunk_(chunk),
        kv_head_(kv_head),
        work_(work),
        rows_(kernels, sizes, work.groups, chunk.num_tokens, params.scale) {}

  void run() const {
    rows_.begin([this](std::int64_t row) { return params_.q + global_row(row) * sizes_.dim; });
    std::fill_n(work_.next, chunk_.num_tokens, 0);
    for (std::int32_t block = next_block(-1); block >= 0; block = next_block(block)) {
      std::int32_t num_keys = 0;  // the most that any row reads
      for (std::int32_t t = 0; t < chunk_.num_tokens; ++t) {
        const std::int32_t limit = take_block(t, block);
        num_keys = std::max(num_keys, limit);
        rows_.set_limit(t, limit);
      }
      decode(block, num_keys);
      rows_.attend();
    }
    rows_.finish([this](std::int64_t row) { return params_.out + global_row(row) * sizes_.dim; });
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
      const auto block_tokens = static_cast<std::int32_t>(sizes_.part_keys);
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
    const auto block_tokens = static_cast<std::int32_t>(sizes_.part_keys);
    return std::clamp(position(t) - block * block_tokens + 1, 0, block_tokens);
  }

  void decode(std::int32_t block, std::int64_t num_keys) const {
    const CacheRowLayout& layout = *params_.cache.layout;
    const auto& slice = params_.batch.sequences[static_cast<std::size_t>(chunk_.sequence)];
    const std::byte* const row =
        params_.cache.pool + std::int64_t{slice.block_table[block]} * layout.row_bytes();
    const CachePlane k = layout.k(params_.layer, kv_head_);
    const CachePlane v = layout.v(params_.layer, kv_head_);
    if (k.dtype == CacheDType::kNvfp4) {
      kernels_.table.attention->decode_rows(nvfp4_plane(k, row, num_keys), rows_.keys());
      kernels_.table.attention->decode_parts(nvfp4_plane(v, row, num_keys), sizes_.part_keys,
                                             rows_.values());
      return;
    }
    rows_.decode(k, v, params_.cache.mode, row, 0, num_keys);
  }

  ops::Nvfp4Plane nvfp4_plane(const CachePlane& plane, const std::byte* row,
                              std::int64_t num_keys) const {
    return {.codes = reinterpret_cast<const std::uint8_t*>(plane.data(row, 0)),
            .scales = reinterpret_cast<const std::uint8_t*>(plane.scales(row, 0)),
            .num_vectors = num_keys,
            .dim = sizes_.dim,
            .table = nvfp4_values(params_.cache.mode)};
  }

  const Kernels& kernels_;
  const ops::AttentionParams& params_;
  const GroupSizes& sizes_;
  const ops::TokenChunk& chunk_;
  std::int32_t kv_head_;
  const Workspace& work_;
  GroupAttention rows_;
};

/// Keys that the chunk's queries read, summed: what a task costs.
std::int64_t keys_read(const ops::AttentionParams& params, const GroupSizes& sizes,
                       const ops::TokenChunk& chunk) {
  const std::int64_t middle = chunk.first_position + chunk.num_tokens / 2 + 1;
  const std::int64_t most = params.blocks == nullptr
                                ? middle
                                : std::min(middle, params.shape.top_k_blocks * sizes.part_keys);
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
  const GroupSizes sizes(params.shape, params.cache.layout->shape().block_tokens, chunk_tokens);
  for (const ops::TokenChunk& chunk : chunks) total_keys += keys_read(params, sizes, chunk);
  const bool in_caller = total_keys * params.shape.num_heads * sizes.dim * 2 < kParallelAttention;

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
