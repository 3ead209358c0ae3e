// One step through the layers; decoder.cpp holds what comes before and after it.
#include <algorithm>
#include <cmath>
#include <memory>

#include "model/decoder.h"
#include "model/decoder_workspace.h"

namespace winnow {

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

void Decoder::norm(const float* x, const ops::Array<float>& weight, std::int64_t num_rows,
                   float* out) {
  backend_.rms_norm(context_, {.x = x,
                               .weight = weight.data(),
                               .eps = static_cast<float>(config_.rms_eps),
                               .num_rows = num_rows,
                               .width = config_.hidden_size,
                               .out = out});
}

void Decoder::run_layers() {
  view_ = placed_.all();
  adapter_of_ = placed_.adapter_of();
  relay_ =
      trace_ != nullptr ? std::make_unique<TraceRelay>(*backend_.memory, *trace_, step_) : nullptr;
  backend_.embed(context_, {.tokens = placed_.tokens(),
                            .num_tokens = view_.num_tokens,
                            .table = weights_.embedding,
                            .table_scheme = weights_.embedding_scheme,
                            .hidden = config_.hidden_size,
                            .out = work_->residual.data()});
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    const PackedLayer& weights = weights_.layers[static_cast<std::size_t>(layer)];
    layer_adapters_ = adapters_.enter(layer, adapter_of_);
    insert_keys(layer, weights);
    if (layer == config_.num_layers - 1 && !needs_every_row()) {
      keep_logit_rows(layer);
      layer_adapters_ = adapters_.enter(layer, adapter_of_);
      if (view_.num_tokens == 0) return;
    }
    run_attention(layer, weights);
    run_mlp(layer, weights);
    capture(layer);
    if (relay_) relay_->on_hidden(layer, work_->residual.data(), config_.hidden_size);
  }
}

/// Whether a trace or a captured stream wants all tokens out of the last layer, which else goes on
/// with those that logits need.
bool Decoder::needs_every_row() const {
  const auto& layers = options_.captured_layers;
  return trace_ != nullptr || (!layers.empty() && layers.back() == config_.num_layers - 1);
}

void Decoder::capture(int layer) {
  const auto& layers = options_.captured_layers;
  const auto at = std::ranges::find(layers, layer);
  if (at == layers.end()) return;
  const ops::Array<float>& stream = work_->streams[static_cast<std::size_t>(at - layers.begin())];
  backend_.memory->copy(
      stream.data(), work_->residual.data(),
      view_.num_tokens * config_.hidden_size * static_cast<std::int64_t>(sizeof(float)));
}

void Decoder::keep_logit_rows(int layer) {
  view_ = placed_.last();
  adapter_of_ = placed_.last_adapter_of();
  if (view_.num_tokens == 0 || view_.num_tokens == placed_.all().num_tokens) return;
  const ops::AttentionShape shape = attention_shape(layer);
  // normed and attended are free between the insertion of keys and attention.
  const auto keep = [&](ops::Array<float>& rows, std::int64_t width, ops::Array<float>& spare) {
    if (width == 0) return;
    backend_.keep_rows(context_, {.from = rows.data(),
                                  .rows = placed_.kept_tokens(),
                                  .num_rows = view_.num_tokens,
                                  .width = width,
                                  .to = spare.data()});
    backend_.memory->copy(rows.data(), spare.data(),
                          view_.num_tokens * width * static_cast<std::int64_t>(sizeof(float)));
  };
  keep(work_->residual, config_.hidden_size, work_->normed);
  keep(work_->q, std::int64_t{shape.num_heads} * shape.head_dim, work_->attended);
  keep(work_->index_q, std::int64_t{shape.num_index_heads} * shape.index_head_dim, work_->spare);
}

void Decoder::insert_keys(int layer, const PackedLayer& weights) {
  const ops::BatchView& batch = view_;
  const ops::AttentionShape shape = attention_shape(layer);
  const bool is_sparse = shape.num_index_heads > 0;
  norm(work_->residual.data(), weights.input_norm, batch.num_tokens, work_->normed.data());
  backend_.qkv_insert(context_, {.h = work_->normed.data(),
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
                                 .q = work_->q.data(),
                                 .index_q = is_sparse ? work_->index_q.data() : nullptr,
                                 .lora = layer_adapters_ ? &layer_adapters_->qkv : nullptr});
}

void Decoder::run_attention(int layer, const PackedLayer& weights) {
  const ops::BatchView& batch = view_;
  const ops::AttentionShape shape = attention_shape(layer);
  const bool is_sparse = shape.num_index_heads > 0;
  if (is_sparse) {
    backend_.index_topk(context_, {.index_q = work_->index_q.data(),
                                   .shape = shape,
                                   .layer = layer,
                                   .batch = batch,
                                   .cache = cache_view(),
                                   .blocks = work_->blocks.data()});
    if (keeps_blocks_) keep_blocks(layer);
    if (relay_) {
      relay_->on_blocks(layer, shape, cache_view(), pool_.num_bytes(), work_->index_q.data(),
                        work_->blocks.data());
    }
  }
  backend_.attention(context_, {.q = work_->q.data(),
                                .shape = shape,
                                .scale = static_cast<float>(1.0 / std::sqrt(config_.head_dim)),
                                .layer = layer,
                                .batch = batch,
                                .cache = cache_view(),
                                .blocks = is_sparse ? work_->blocks.data() : nullptr,
                                .out = work_->attended.data()});
  const std::int64_t heads = std::int64_t{config_.num_heads} * config_.head_dim;
  backend_.linear(context_, {.x = work_->attended.data(),
                             .x_stride = heads,
                             .w = weights.output.get(),
                             .y = work_->residual.data(),
                             .y_stride = config_.hidden_size,
                             .num_rows = batch.num_tokens,
                             .accumulate = true});
  if (layer_adapters_ == nullptr) return;
  backend_.lora(context_, {.rows = layer_adapters_->output,
                           .num_rows = batch.num_tokens,
                           .x = work_->attended.data(),
                           .x_stride = heads,
                           .y = work_->residual.data(),
                           .y_stride = config_.hidden_size});
}

void Decoder::run_mlp(int layer, const PackedLayer& weights) {
  const std::int32_t num_tokens = view_.num_tokens;
  const ops::SwigluConstants constants{.alpha = static_cast<float>(config_.swiglu_alpha),
                                       .limit = static_cast<float>(config_.swiglu_limit)};
  norm(work_->residual.data(), weights.attention_norm, num_tokens, work_->normed.data());
  if (!config_.layers[static_cast<std::size_t>(layer)].is_moe) {
    backend_.mlp(context_, {.h = work_->normed.data(),
                            .num_tokens = num_tokens,
                            .weights = weights.mlp.view(),
                            .constants = constants,
                            .y = work_->residual.data(),
                            .accumulate = true,
                            .lora = layer_adapters_ ? &layer_adapters_->mlp : nullptr});
    return;
  }
  const PackedMoe& moe = weights.moe;
  backend_.moe(context_, {.h = work_->normed.data(),
                          .num_tokens = num_tokens,
                          .router = moe.router.get(),
                          .router_bias = moe.router_bias.data(),
                          .experts = moe.expert_views,
                          .shared = moe.shared.view(),
                          .table = moe.table.get(),
                          .top_k = config_.top_k_experts,
                          .routed_scale = static_cast<float>(config_.routed_scaling_factor),
                          .constants = constants,
                          .y = work_->residual.data(),
                          .chosen_experts = work_->experts.data(),
                          .chosen_weights = work_->expert_weights.data(),
                          .lora = layer_adapters_ ? &layer_adapters_->moe : nullptr});
  if (relay_) {
    relay_->on_experts(layer, work_->experts.data(), work_->expert_weights.data(),
                       config_.top_k_experts);
  }
}

/// Of logit rows [first_row, first_row + num_rows) of the step.
void Decoder::write_logits(std::int64_t first_row, std::int64_t num_rows, float* logits) {
  const std::int64_t hidden = config_.hidden_size;
  backend_.keep_rows(context_, {.from = work_->residual.data(),
                                .rows = placed_.logit_rows() + first_row,
                                .num_rows = num_rows,
                                .width = hidden,
                                .to = work_->normed.data()});
  norm(work_->normed.data(), weights_.final_norm, num_rows, work_->normed.data());
  backend_.linear(context_, {.x = work_->normed.data(),
                             .x_stride = hidden,
                             .w = weights_.lm_head.get(),
                             .y = logits,
                             .y_stride = config_.vocab_size,
                             .num_rows = num_rows});
}

void Decoder::keep_blocks(int layer) {
  const auto& layers = config_.layers;
  const auto is_sparse = [](const auto& of) { return of.is_sparse_attention; };
  const auto index = std::count_if(layers.begin(), layers.begin() + layer, is_sparse);
  kept_blocks_.keep(index, work_->blocks.data(), view_.num_tokens, layer == config_.num_layers - 1);
}

}  // namespace winnow
