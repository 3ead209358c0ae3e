// Block selection on the CPU kernels: scores of all (query, block) pairs, shared out over chunks of
// queries and ranges of blocks, then the best blocks of each query. A score depends on its query
// and block alone.
#include <algorithm>
#include <iterator>
#include <limits>
#include <span>

#include "formats/cache_codec.h"
#include "ops/attention/cpu_kernel.h"
#include "ops/cost_shares.h"
#include "ops/cpu_ops.h"
#include "ops/index_topk/cpu_kernel.h"
#include "ops/index_topk/index_topk.h"
#include "ops/op_context.h"
#include "ops/token_chunks.h"
#include "ops/x86/nvfp4_values.h"

namespace winnow::cpu {
namespace {

constexpr std::int32_t kChunkTokens = 64;  // queries that share the decoding of keys
constexpr std::int32_t kUnitBlocks = 16;   // blocks of one unit of work

/// Keys decoded at a time: 16 KiB at 128 dims, so that they stay in the first-level cache.
constexpr std::int32_t kStepKeys = 32;

/// Scores kept at a time: 64 MiB. Longer batches go in rounds.
constexpr std::int64_t kMaxScores = std::int64_t{16} << 20;

/// Below this many keys (some 10 µs of one core) waking other threads costs more.
constexpr std::int64_t kParallelKeys = 1024;

/// A chunk of queries and the scores of its rows, [token][index head][num_blocks].
struct ScoredChunk {
  ops::TokenChunk tokens;
  std::int32_t num_blocks = 0;
  float* scores = nullptr;
};

/// Blocks [first_block, last_block) of a chunk.
struct Unit {
  const ScoredChunk* chunk = nullptr;
  std::int32_t first_block = 0;
  std::int32_t last_block = 0;
};

class Indexer {
 public:
  Indexer(const Kernels& kernels, const ops::OpContext& context, const ops::IndexTopkParams& params)
      : kernels_(kernels),
        context_(context),
        params_(params),
        num_heads_(params.shape.num_index_heads),
        dim_(params.shape.index_head_dim),
        block_tokens_(params.cache.layout->shape().block_tokens),
        plane_(params.cache.layout->index_k(params.layer)) {
    keys_ = context.scratch->take_array<float>(context.pool->num_threads() * kStepKeys * dim_);
    best_ =
        context.scratch->take_array<float>(context.pool->num_threads() * kChunkTokens * num_heads_);
  }

  void run() {
    const auto chunks = ops::split_batch(params_.batch, kChunkTokens, *context_.scratch);
    for (std::size_t begin = 0; begin < chunks.size();) {
      const ops::Scratch::Mark mark = context_.scratch->mark();
      std::size_t end = begin;
      std::int64_t num_scores = 0;
      while (end < chunks.size() && (end == begin || num_scores < kMaxScores)) {
        num_scores += std::int64_t{chunks[end].num_tokens} * num_heads_ * blocks_of(chunks[end]);
        ++end;
      }
      run_round(chunks.subspan(begin, end - begin), num_scores);
      context_.scratch->rewind(mark);
      begin = end;
    }
  }

 private:
  std::int32_t blocks_of(const ops::TokenChunk& chunk) const {
    return (chunk.first_position + chunk.num_tokens - 1) / block_tokens_ + 1;
  }

  void run_round(std::span<const ops::TokenChunk> chunks, std::int64_t num_scores) const {
    ops::Scratch& scratch = *context_.scratch;
    auto* const scored = scratch.take_array<ScoredChunk>(std::ssize(chunks));
    auto* scores = scratch.take_array<float>(num_scores);
    std::int64_t num_units = 0;
    std::int64_t num_keys = 0;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      scored[i] = {.tokens = chunks[i], .num_blocks = blocks_of(chunks[i]), .scores = scores};
      scores += std::int64_t{chunks[i].num_tokens} * num_heads_ * scored[i].num_blocks;
      num_units += (scored[i].num_blocks + kUnitBlocks - 1) / kUnitBlocks;
      num_keys += std::int64_t{scored[i].num_blocks} * block_tokens_ * chunks[i].num_tokens;
    }
    auto* const units = scratch.take_array<Unit>(num_units);
    Unit* next = units;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      for (std::int32_t b = 0; b < scored[i].num_blocks; b += kUnitBlocks) {
        *next++ = {&scored[i], b, std::min(scored[i].num_blocks, b + kUnitBlocks)};
      }
    }
    const bool in_caller = num_keys < kParallelKeys;
    run_by_cost(
        *context_.pool, num_units, in_caller,
        [&](std::int64_t i) {
          return std::int64_t{units[i].last_block - units[i].first_block} *
                 units[i].chunk->tokens.num_tokens;
        },
        [&](std::int64_t i, int thread) {
          score(units[i], keys_ + thread * kStepKeys * dim_,
                best_ + thread * kChunkTokens * num_heads_);
        });
    run_by_cost(
        *context_.pool, std::ssize(chunks), in_caller,
        [&](std::int64_t i) { return std::int64_t{scored[i].tokens.num_tokens}; },
        [&](std::int64_t i, int) { select(scored[i]); });
  }

  void score(const Unit& unit, float* keys, float* best) const {
    const ops::TokenChunk& tokens = unit.chunk->tokens;
    const std::int32_t last_position = tokens.first_position + tokens.num_tokens - 1;
    const std::int64_t num_rows = std::int64_t{tokens.num_tokens} * num_heads_;
    for (std::int32_t b = unit.first_block; b < unit.last_block; ++b) {
      std::fill_n(best, num_rows, -std::numeric_limits<float>::infinity());
      const std::int32_t begin = b * block_tokens_;
      const std::int32_t end = std::min(begin + block_tokens_, last_position + 1);
      if (tokens.num_tokens == 1 && plane_.dtype == CacheDType::kNvfp4) {
        // One query sees every key of the range: nothing to share a decoded key with.
        const std::int64_t row = tokens.first_token * num_heads_;
        kernels_.table.index->best_nvfp4_scores(params_.index_q + row * dim_, num_heads_,
                                                nvfp4_keys(tokens.sequence, b, 0, end - begin),
                                                best);
      } else {
        for (std::int32_t key = begin; key < end; key += kStepKeys) {
          const std::int32_t count = std::min(kStepKeys, end - key);
          decode(tokens.sequence, b, key - begin, count, keys);
          score_step(tokens, key, count, keys, best);
        }
      }
      for (std::int64_t row = 0; row < num_rows; ++row) {
        unit.chunk->scores[row * unit.chunk->num_blocks + b] = best[row];
      }
    }
  }

  /// Keys at positions [first, first + count). Queries before the last of them see fewer.
  void score_step(const ops::TokenChunk& tokens, std::int32_t first, std::int32_t count,
                  const float* keys, float* best) const {
    std::int32_t t = 0;
    for (; t < tokens.num_tokens && tokens.first_position + t < first + count - 1; ++t) {
      const std::int32_t visible = tokens.first_position + t - first + 1;
      if (visible > 0) score_rows(tokens, t, 1, keys, visible, best);
    }
    if (t < tokens.num_tokens) {
      score_rows(tokens, t, tokens.num_tokens - t, keys, count, best);
    }
  }

  void score_rows(const ops::TokenChunk& tokens, std::int32_t t, std::int32_t num_tokens,
                  const float* keys, std::int32_t num_keys, float* best) const {
    const std::int64_t row = (std::int64_t{tokens.first_token} + t) * num_heads_;
    kernels_.table.index->best_scores(params_.index_q + row * dim_,
                                      std::int64_t{num_tokens} * num_heads_, keys, num_keys, dim_,
                                      best + std::int64_t{t} * num_heads_);
  }

  const std::byte* cache_row(std::int32_t sequence, std::int32_t block) const {
    const auto& slice = params_.batch.sequences[static_cast<std::size_t>(sequence)];
    return params_.cache.pool +
           std::int64_t{slice.block_table[block]} * params_.cache.layout->row_bytes();
  }

  ops::Nvfp4Plane nvfp4_keys(std::int32_t sequence, std::int32_t block, std::int32_t first,
                             std::int32_t count) const {
    const std::byte* const row = cache_row(sequence, block);
    return {.codes = reinterpret_cast<const std::uint8_t*>(plane_.data(row, first)),
            .scales = reinterpret_cast<const std::uint8_t*>(plane_.scales(row, first)),
            .num_vectors = count,
            .dim = dim_,
            .table = nvfp4_values(params_.cache.mode)};
  }

  void decode(std::int32_t sequence, std::int32_t block, std::int32_t first, std::int32_t count,
              float* keys) const {
    if (plane_.dtype == CacheDType::kNvfp4) {
      kernels_.table.attention->decode_rows(nvfp4_keys(sequence, block, first, count), keys);
      return;
    }
    decode_cache_vector(plane_.dtype, params_.cache.mode,
                        plane_.data(cache_row(sequence, block), first), nullptr,
                        {keys, static_cast<std::size_t>(count * dim_)}, kernels_.codecs);
  }

  void select(const ScoredChunk& chunk) const {
    for (std::int32_t t = 0; t < chunk.tokens.num_tokens; ++t) {
      const std::int32_t last_block = (chunk.tokens.first_position + t) / block_tokens_;
      for (std::int64_t g = 0; g < num_heads_; ++g) {
        const std::int64_t row = (std::int64_t{chunk.tokens.first_token} + t) * num_heads_ + g;
        select_blocks(chunk.scores + (t * num_heads_ + g) * chunk.num_blocks, last_block,
                      params_.blocks + row * params_.shape.top_k_blocks);
      }
    }
  }

  /// The best of blocks 0 … last_block in ascending order, then -1.
  void select_blocks(const float* scores, std::int32_t last_block, std::int32_t* out) const {
    const ops::AttentionShape& shape = params_.shape;
    // Forced blocks go first: local ones, then initial ones.
    const auto is_local = [&](std::int32_t b) { return b > last_block - shape.local_blocks; };
    const auto is_forced = [&](std::int32_t b) { return is_local(b) || b < shape.init_blocks; };
    std::int32_t count = 0;
    for (std::int32_t b = std::max(0, last_block - shape.local_blocks + 1);
         b <= last_block && count < shape.top_k_blocks; ++b) {
      out[count++] = b;
    }
    for (std::int32_t b = 0; b < shape.init_blocks && count < shape.top_k_blocks; ++b) {
      if (b <= last_block && !is_local(b)) out[count++] = b;
    }
    // The rest by score; equal scores keep the order of arrival, which is ascending.
    const std::int32_t num_forced = count;
    for (std::int32_t b = 0; b <= last_block; ++b) {
      if (is_forced(b) || scores[b] == -std::numeric_limits<float>::infinity()) continue;
      std::int32_t at = count;
      if (count < shape.top_k_blocks) {
        ++count;
      } else {
        if (num_forced == count || !(scores[b] > scores[out[count - 1]])) continue;
        at = count - 1;
      }
      for (; at > num_forced && scores[b] > scores[out[at - 1]]; --at) out[at] = out[at - 1];
      out[at] = b;
    }
    std::sort(out, out + count);
    std::fill(out + count, out + shape.top_k_blocks, -1);
  }

  const Kernels& kernels_;
  const ops::OpContext& context_;
  const ops::IndexTopkParams& params_;
  std::int64_t num_heads_;
  std::int64_t dim_;
  std::int32_t block_tokens_;
  CachePlane plane_;
  float* keys_ = nullptr;  // [threads][kStepKeys][dim]
  float* best_ = nullptr;  // [threads][kChunkTokens][num_index_heads]
};

}  // namespace

void index_topk(const Kernels& kernels, const ops::OpContext& context,
                const ops::IndexTopkParams& params) {
  Indexer(kernels, context, params).run();
  context.scratch->reset();
}

}  // namespace winnow::cpu
