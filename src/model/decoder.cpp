#include "model/decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/error.h"
#include "base/log.h"

namespace winnow {
namespace {

CacheRowLayout make_layout(const ModelConfig& config, const DecoderOptions& options) {
  const CacheDType automatic = config.default_cache_dtype();
  return CacheRowLayout({.num_layers = config.num_layers,
                         .index_layers = config.sparse_layers(),
                         .num_kv_heads = config.num_kv_heads,
                         .head_dim = config.head_dim,
                         .index_head_dim = config.index_head_dim,
                         .block_tokens = config.block_tokens,
                         .kv_dtype = options.kv_dtype.value_or(automatic),
                         .index_dtype = options.index_dtype.value_or(automatic),
                         .drafter = std::nullopt});
}

DequantMode default_mode(const ModelConfig& config) {
  return config.default_cache_dtype() == CacheDType::kNvfp4 ? DequantMode::kE4M3
                                                            : DequantMode::kExact;
}

/// FNV-1a over the bytes of a few integers.
std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8) {
    hash = (hash ^ (value >> shift & 0xFFU)) * 0x100000001B3U;
  }
  return hash;
}

}  // namespace

/// Activations of one step, for as many tokens as a step may have.
struct Decoder::Workspace {
  Workspace(const ModelConfig& config, std::int64_t max_tokens) {
    const std::int64_t heads = std::int64_t{config.num_heads} * config.head_dim;
    const std::int64_t index_heads = std::int64_t{config.index_num_heads} * config.index_head_dim;
    const std::int64_t selected = std::int64_t{config.index_num_heads} * config.top_k_blocks;
    take(max_tokens * config.hidden_size, residual);
    take(max_tokens * config.hidden_size, normed);
    take(max_tokens * heads, q);
    take(max_tokens * heads, attended);
    take(max_tokens * index_heads, index_q);
    take(max_tokens * selected, blocks);
    take(max_tokens * config.top_k_experts, experts);
    take(max_tokens * config.top_k_experts, expert_weights);
  }

  template <typename T>
  void take(std::int64_t count, T*& pointer) {
    buffers.emplace_back(count * static_cast<std::int64_t>(sizeof(T)), "activations of a step");
    pointer = buffers.back().as<T>();
  }

  std::vector<Buffer> buffers;
  float* residual = nullptr;        // [tokens][hidden]: the stream that layers add to
  float* normed = nullptr;          // [tokens][hidden]
  float* q = nullptr;               // [tokens][num_heads][head_dim]
  float* attended = nullptr;        // [tokens][num_heads][head_dim]
  float* index_q = nullptr;         // [tokens][index heads][index_head_dim]
  std::int32_t* blocks = nullptr;   // [tokens][index heads][top_k_blocks]
  std::int32_t* experts = nullptr;  // [tokens][top_k_experts]
  float* expert_weights = nullptr;  // [tokens][top_k_experts]
};

Decoder::Decoder(ModelConfig config, PackedWeights weights, ops::Backend backend,
                 const DecoderOptions& options)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      backend_(std::move(backend)),
      layout_(make_layout(config_, options)),
      dequant_(options.dequant.value_or(default_mode(config_))),
      options_(options),
      rope_(config_.rope_theta, config_.rotary_dim,
            std::max(config_.max_position_embeddings, options.max_positions)),
      work_(std::make_unique<Workspace>(config_, options.max_num_batched_tokens)) {
  step_.reserve(options.max_num_batched_tokens);
  spdlog::info("backend {}; KV cache {}, index cache {}, dequantisation {}; {} bytes per token",
               backend_.name, cache_dtype_name(layout_.shape().kv_dtype),
               cache_dtype_name(layout_.shape().index_dtype), dequant_mode_name(dequant_),
               layout_.bytes_per_token());
  if (options.num_blocks > 0) allocate_pool(options.num_blocks);
}

Decoder::~Decoder() = default;

void Decoder::allocate_pool(std::int32_t num_blocks) {
  pool_ = Buffer();
  pool_ = Buffer(layout_.row_bytes() * num_blocks, "the KV pool");
  num_blocks_ = num_blocks;
}

ops::CacheView Decoder::cache_view() const {
  return {.pool = pool_.data(), .layout = &layout_, .mode = dequant_};
}

void Decoder::copy_block(BlockId from, BlockId to) {
  const auto is_row = [&](BlockId id) { return id.value >= 0 && id.value < num_blocks_; };
  WINNOW_ASSERT(is_row(from) && is_row(to), "a block of the pool", from.value, to.value);
  std::memmove(pool_.data() + to.value * layout_.row_bytes(),
               pool_.data() + from.value * layout_.row_bytes(),
               static_cast<std::size_t>(layout_.row_bytes()));
}

std::uint64_t Decoder::cache_identity() const {
  const CacheRowShape& shape = layout_.shape();
  std::uint64_t hash = mix(0xCBF29CE484222325U, weights_.fingerprint);
  hash = mix(hash, static_cast<std::uint64_t>(shape.kv_dtype));
  hash = mix(hash, static_cast<std::uint64_t>(shape.index_dtype));
  return mix(hash, static_cast<std::uint64_t>(dequant_));
}

ops::AttentionShape Decoder::attention_shape(int layer) const {
  const bool is_sparse = config_.layers[static_cast<std::size_t>(layer)].is_sparse_attention;
  return {.num_heads = config_.num_heads,
          .num_kv_heads = config_.num_kv_heads,
          .head_dim = config_.head_dim,
          .rotary_dim = config_.rotary_dim,
          .num_index_heads = is_sparse ? config_.index_num_heads : 0,
          .index_head_dim = config_.index_head_dim,
          .top_k_blocks = config_.top_k_blocks,
          .local_blocks = config_.local_blocks,
          .init_blocks = config_.init_blocks};
}

void Decoder::norm(const float* x, const std::vector<float>& weight, std::int64_t num_rows,
                   float* out) {
  backend_.rms_norm(context_, {.x = x,
                               .weight = weight.data(),
                               .eps = static_cast<float>(config_.rms_eps),
                               .num_rows = num_rows,
                               .width = config_.hidden_size,
                               .out = out});
}

void Decoder::run(const Batch& batch, std::span<float> logits) {
  if (threads_ == nullptr) {
    threads_ = std::make_unique<ThreadPool>(options_.num_threads, options_.pin_threads);
    context_ = {.pool = threads_.get(), .scratch = &scratch_};
  }
  step_.assign(batch, {.max_num_tokens = options_.max_num_batched_tokens,
                       .vocab_size = config_.vocab_size,
                       .block_tokens = config_.block_tokens,
                       .num_blocks = num_blocks_,
                       .max_positions = rope_.max_positions()});
  WINNOW_ASSERT(logits.size() == batch.logit_rows.size() * static_cast<std::size_t>(vocab_size()),
                "room for the logits of every row", logits.size(), batch.logit_rows.size());
  if (batch.tokens.empty()) return;
  rope_.extend_to(step_.num_positions());

  const ops::BatchView view = step_.view();
  backend_.embed(context_, {.tokens = batch.tokens.data(),
                            .num_tokens = view.num_tokens,
                            .table = weights_.embedding,
                            .table_scheme = weights_.embedding_scheme,
                            .hidden = config_.hidden_size,
                            .out = work_->residual});
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    const PackedLayer& weights = weights_.layers[static_cast<std::size_t>(layer)];
    insert_keys(layer, weights);
    // A trace wants to see every token; else the last layer goes on with those it needs.
    if (layer == config_.num_layers - 1 && trace_ == nullptr) {
      keep_logit_rows(layer);
      if (step_.view().num_tokens == 0) return;
    }
    run_attention(layer, weights);
    run_mlp(layer, weights);
    if (trace_ != nullptr) {
      trace_->on_hidden(
          layer, view,
          {work_->residual, batch.tokens.size() * static_cast<std::size_t>(config_.hidden_size)});
    }
  }
  write_logits(logits.data());
}

void Decoder::keep_logit_rows(int layer) {
  step_.keep_logit_rows();
  const ops::AttentionShape shape = attention_shape(layer);
  const std::int64_t heads = std::int64_t{shape.num_heads} * shape.head_dim;
  const std::int64_t index_heads = std::int64_t{shape.num_index_heads} * shape.index_head_dim;
  std::int64_t to = 0;
  for (const std::int32_t from : step_.kept_tokens()) {
    if (from != to) {  // ascending, so a row never lands on one that is still to move
      std::copy_n(work_->residual + from * std::int64_t{config_.hidden_size}, config_.hidden_size,
                  work_->residual + to * config_.hidden_size);
      std::copy_n(work_->q + from * heads, heads, work_->q + to * heads);
      std::copy_n(work_->index_q + from * index_heads, index_heads,
                  work_->index_q + to * index_heads);
    }
    ++to;
  }
}

void Decoder::insert_keys(int layer, const PackedLayer& weights) {
  const ops::BatchView batch = step_.view();
  const ops::AttentionShape shape = attention_shape(layer);
  const bool is_sparse = shape.num_index_heads > 0;
  norm(work_->residual, weights.input_norm, batch.num_tokens, work_->normed);
  backend_.qkv_insert(context_, {.h = work_->normed,
                                 .w = weights.qkv.get(),
                                 .q_norm = weights.q_norm.data(),
                                 .k_norm = weights.k_norm.data(),
                                 .index_q_norm = is_sparse ? weights.index_q_norm.data() : nullptr,
                                 .index_k_norm = is_sparse ? weights.index_k_norm.data() : nullptr,
                                 .eps = static_cast<float>(config_.rms_eps),
                                 .rope = rope_.table(),
                                 .shape = shape,
                                 .layer = layer,
                                 .batch = batch,
                                 .cache = cache_view(),
                                 .q = work_->q,
                                 .index_q = is_sparse ? work_->index_q : nullptr});
}

void Decoder::run_attention(int layer, const PackedLayer& weights) {
  const ops::BatchView batch = step_.view();
  const ops::AttentionShape shape = attention_shape(layer);
  const bool is_sparse = shape.num_index_heads > 0;
  if (is_sparse) {
    backend_.index_topk(context_, {.index_q = work_->index_q,
                                   .shape = shape,
                                   .layer = layer,
                                   .batch = batch,
                                   .cache = cache_view(),
                                   .blocks = work_->blocks});
    if (trace_ != nullptr) {
      const auto heads = static_cast<std::size_t>(batch.num_tokens) *
                         static_cast<std::size_t>(shape.num_index_heads);
      trace_->on_blocks(
          {.layer = layer,
           .shape = shape,
           .batch = batch,
           .cache = cache_view(),
           .index_q = {work_->index_q, heads * static_cast<std::size_t>(shape.index_head_dim)},
           .blocks = {work_->blocks, heads * static_cast<std::size_t>(shape.top_k_blocks)}});
    }
  }
  backend_.attention(context_, {.q = work_->q,
                                .shape = shape,
                                .scale = static_cast<float>(1.0 / std::sqrt(config_.head_dim)),
                                .layer = layer,
                                .batch = batch,
                                .cache = cache_view(),
                                .blocks = is_sparse ? work_->blocks : nullptr,
                                .out = work_->attended});
  const std::int64_t heads = std::int64_t{config_.num_heads} * config_.head_dim;
  backend_.linear(context_, {.x = work_->attended,
                             .x_stride = heads,
                             .w = weights.output.get(),
                             .y = work_->residual,
                             .y_stride = config_.hidden_size,
                             .num_rows = batch.num_tokens,
                             .accumulate = true});
}

void Decoder::run_mlp(int layer, const PackedLayer& weights) {
  const std::int32_t num_tokens = step_.view().num_tokens;
  const ops::SwigluConstants constants{.alpha = static_cast<float>(config_.swiglu_alpha),
                                       .limit = static_cast<float>(config_.swiglu_limit)};
  norm(work_->residual, weights.attention_norm, num_tokens, work_->normed);
  if (!config_.layers[static_cast<std::size_t>(layer)].is_moe) {
    backend_.mlp(context_, {.h = work_->normed,
                            .num_tokens = num_tokens,
                            .weights = weights.mlp.view(),
                            .constants = constants,
                            .y = work_->residual,
                            .accumulate = true});
    return;
  }
  const PackedMoe& moe = weights.moe;
  backend_.moe(context_, {.h = work_->normed,
                          .num_tokens = num_tokens,
                          .router = moe.router.get(),
                          .router_bias = moe.router_bias.data(),
                          .experts = moe.expert_views,
                          .shared = moe.shared.view(),
                          .top_k = config_.top_k_experts,
                          .routed_scale = static_cast<float>(config_.routed_scaling_factor),
                          .constants = constants,
                          .y = work_->residual,
                          .chosen_experts = work_->experts,
                          .chosen_weights = work_->expert_weights});
  if (trace_ != nullptr) {
    const auto choices =
        static_cast<std::size_t>(num_tokens) * static_cast<std::size_t>(config_.top_k_experts);
    trace_->on_experts(layer, step_.view(), {work_->experts, choices},
                       {work_->expert_weights, choices});
  }
}

void Decoder::write_logits(float* logits) {
  const std::int64_t hidden = config_.hidden_size;
  const std::span<const std::int32_t> rows = step_.logit_rows();
  const std::int64_t num_rows = std::ssize(rows);
  if (num_rows == 0) return;
  for (std::int64_t i = 0; i < num_rows; ++i) {
    const std::int64_t row = rows[static_cast<std::size_t>(i)];
    std::copy_n(work_->residual + row * hidden, hidden, work_->normed + i * hidden);
  }
  norm(work_->normed, weights_.final_norm, num_rows, work_->normed);
  backend_.linear(context_, {.x = work_->normed,
                             .x_stride = hidden,
                             .w = weights_.lm_head.get(),
                             .y = logits,
                             .y_stride = config_.vocab_size,
                             .num_rows = num_rows});
}

}  // namespace winnow
