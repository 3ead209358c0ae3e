#include "model/dspark_drafter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/assert.h"
#include "base/error.h"
#include "checkpoint/drafter_weights.h"
#include "ops/fast_exp.h"

namespace winnow {
namespace {

/// Context tokens that are projected together: bounds the work arrays (34 MB at M3.1's sizes).
constexpr std::int32_t kContextChunk = 512;

/// Requests whose blocks are drawn together: more come in rounds. Bounds the room for logits (359
/// MB at M3.1's sizes), which is taken at the start.
constexpr std::size_t kMostDrawnRequests = 64;

/// Blocks that are longer than any trained one are not recorded.
constexpr std::int32_t kMaxRecordedTokens = 16;

template <typename... Values>
void require(bool condition, fmt::format_string<const Values&...> text, const Values&... values) {
  if (!condition) throw Error(ErrorCode::kInternal, "draft: " + fmt::format(text, values...));
}

void check_table(std::span<const BlockId> table, std::int64_t end, std::int32_t block_tokens) {
  require((end + block_tokens - 1) / block_tokens <= std::ssize(table),
          "{} positions of context, the table has {} blocks", end, table.size());
}

}  // namespace

CacheRowShape::Drafter drafter_cache_shape(const DrafterConfig& config, CacheDType dtype) {
  if (dtype == CacheDType::kNvfp4) {
    throw Error(ErrorCode::kUnsupported, "the drafter's KV cache is nvfp4",
                "set kv_cache_dtype in --speculative-config to fp8 or bf16");
  }
  return {.num_layers = config.num_layers,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .dtype = dtype};
}

DsparkDrafter::DsparkDrafter(DrafterConfig config, PackedDrafter weights,
                             const SharedTables& target, ops::Backend backend,
                             std::int64_t max_positions)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      tables_(weights_.tables(target)),
      backend_(std::move(backend)),
      rope_(config_.rope_theta, config_.rotary_dim, max_positions, backend_.memory),
      context_batch_(backend_.memory),
      block_batch_(backend_.memory) {
  if (backend_.draft_attention == nullptr || backend_.draft_insert == nullptr ||
      backend_.draft_heads == nullptr) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("backend {} has no operations for a drafter", backend_.name),
                "serve without --speculative-config, or with --backend cpu");
  }
  if (backend_.reserve) backend_.reserve(work_limits());
  // Once the cache has taken what is left, a device has nothing to give.
  if (can_draw()) make_room(kMostDrawnRequests, config_.block_size);
  if (!backend_.memory->is_host()) make_context_room(kContextChunk);
}

DsparkDrafter::~DsparkDrafter() = default;

ops::AttentionShape DsparkDrafter::attention_shape() const {
  return {.num_heads = config_.num_heads,
          .num_kv_heads = config_.num_kv_heads,
          .head_dim = config_.head_dim,
          .rotary_dim = config_.rotary_dim};
}

ops::WorkLimits DsparkDrafter::work_limits() const {
  const PackedDrafterLayer& layer = weights_.layers.front();
  return {.max_tokens = kContextChunk,
          .max_positions = 0,
          .hidden = config_.hidden_size,
          .qkv_rows = std::max(layer.qkv->rows(), weights_.context_kv->rows()),
          .mlp_width = layer.mlp.down->cols(),
          .attention = attention_shape()};
}

/// What was recorded with the array's address is stale once it moves.
template <typename T>
void DsparkDrafter::grow(ops::Array<T>& array, std::int64_t count) {
  if (count <= array.size()) return;
  array = {};
  array = ops::Array<T>(backend_.memory, count, "activations of the drafter");
  ++generation_;
}

void DsparkDrafter::norm(const ops::OpContext& context, const float* x,
                         const ops::Array<float>& weight, std::int64_t num_rows, float* out) {
  backend_.rms_norm(context, {.x = x,
                              .weight = weight.data(),
                              .eps = rms_eps(),
                              .offset = norm_offset(),
                              .num_rows = num_rows,
                              .width = config_.hidden_size,
                              .out = out});
}

void DsparkDrafter::make_context_room(std::int64_t num_tokens) {
  grow(stream_, num_tokens * config_.hidden_size);
  grow(fused_, num_tokens * config_.hidden_size);
  grow(projected_, num_tokens * weights_.context_kv->rows());
}

void DsparkDrafter::insert_context(const ops::OpContext& context,
                                   std::span<const float* const> streams,
                                   std::span<const ContextSlice> slices,
                                   const ops::CacheView& cache) {
  require(std::ssize(streams) == config_.num_streams(), "{} streams, expected {}", streams.size(),
          config_.num_streams());
  std::vector<DraftBatch::Sequence> sequences;
  std::vector<std::int32_t> rows;
  for (const ContextSlice& slice : slices) {
    const std::int64_t end = std::int64_t{slice.first_position} + slice.num_tokens;
    require(slice.num_tokens >= 0 && end <= rope_.max_positions(),
            "context up to position {} of {}", end, rope_.max_positions());
    check_table(slice.block_table, slice.num_tokens == 0 ? 0 : end,
                cache.layout->shape().block_tokens);
    sequences.push_back({.num_tokens = slice.num_tokens,
                         .first_position = slice.first_position,
                         .block_table = slice.block_table});
    for (std::int32_t t = 0; t < slice.num_tokens; ++t) rows.push_back(slice.first_row + t);
  }
  context_batch_.place(sequences, rows);
  rope_.extend_to(context_batch_.view().num_positions);

  const std::int64_t hidden = config_.hidden_size;
  const std::int64_t width = weights_.context_kv->rows();
  const std::int32_t total = context_batch_.view().num_tokens;
  const std::int32_t chunk = std::min(total, kContextChunk);
  make_context_room(chunk);
  for (std::int32_t first = 0; first < total; first += chunk) {
    const std::int32_t count = std::min(chunk, total - first);
    for (std::size_t i = 0; i < streams.size(); ++i) {
      backend_.keep_rows(context, {.from = streams[i],
                                   .rows = context_batch_.values() + first,
                                   .num_rows = count,
                                   .width = hidden,
                                   .to = stream_.data()});
      backend_.linear(context, {.x = stream_.data(),
                                .x_stride = hidden,
                                .w = weights_.fc[i].get(),
                                .y = fused_.data(),
                                .y_stride = hidden,
                                .num_rows = count,
                                .accumulate = i > 0});
    }
    norm(context, fused_.data(), weights_.hidden_norm, count, fused_.data());
    backend_.linear(context, {.x = fused_.data(),
                              .x_stride = hidden,
                              .w = weights_.context_kv.get(),
                              .y = projected_.data(),
                              .y_stride = width,
                              .num_rows = count});
    backend_.draft_insert(context, {.projected = projected_.data(),
                                    .k_norm = weights_.context_k_norm.data(),
                                    .norm_offset = norm_offset(),
                                    .eps = rms_eps(),
                                    .rope = rope_.table(),
                                    .shape = attention_shape(),
                                    .num_layers = config_.num_layers,
                                    .batch = context_batch_.part(first, count),
                                    .cache = cache});
  }
}

void DsparkDrafter::place_requests(std::span<const DraftRequest> requests, std::int32_t num_tokens,
                                   std::int32_t block_tokens, std::span<const ops::Draw> draws) {
  require(num_tokens >= 1 && num_tokens <= config_.block_size,
          "{} tokens, the block was trained for 1 to {}", num_tokens, config_.block_size);
  std::vector<DraftBatch::Sequence> sequences;
  std::vector<std::int32_t> ids;
  for (const DraftRequest& request : requests) {
    const std::int64_t end = std::int64_t{request.position} + num_tokens;
    require(request.position >= 0 && end <= rope_.max_positions(), "position {} of {}", end,
            rope_.max_positions());
    require(request.anchor >= 0 && request.anchor < config_.vocab_size, "token {} of {}",
            request.anchor, config_.vocab_size);
    check_table(request.block_table, request.position, block_tokens);
    sequences.push_back({.num_tokens = num_tokens,
                         .first_position = request.position,
                         .block_table = request.block_table});
    ids.push_back(request.anchor);
    ids.insert(ids.end(), static_cast<std::size_t>(num_tokens - 1), config_.noise_token);
  }
  block_batch_.place(sequences, ids, draws);
  rope_.extend_to(block_batch_.view().num_positions);
  num_requests_ = static_cast<std::int32_t>(requests.size());
  num_tokens_ = num_tokens;
}

void DsparkDrafter::make_room(std::int64_t num_requests, std::int64_t num_tokens) {
  const std::int64_t rows = num_requests * num_tokens;
  const std::int64_t hidden = config_.hidden_size;
  const ops::AttentionShape shape = attention_shape();
  grow(x_, rows * hidden);
  grow(normed_, rows * hidden);
  grow(hidden_, rows * hidden);
  grow(qkv_, rows * (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim);
  grow(attended_, rows * shape.num_heads * shape.head_dim);
  grow(logits_, rows * config_.vocab_size);
  grow(previous_, num_requests);
  grow(token_rows_, num_requests * config_.markov_rank);
  grow(drawn_, rows);
  if (has_confidence()) grow(confidence_, rows);
}

/// Runs `operations`, which only submits; a backend may replay them for equal counts.
void DsparkDrafter::record(const ops::CacheView& cache, std::int64_t num_draws, bool has_confidence,
                           const std::function<void()>& operations) {
  if (cache.pool != pool_) {
    pool_ = cache.pool;
    ++generation_;
  }
  if (!backend_.run_step || num_tokens_ > kMaxRecordedTokens) return operations();
  const ops::BatchView& batch = block_batch_.view();
  backend_.run_step({.kind = ops::StepKind::kDraft,
                     .num_tokens = batch.num_tokens,
                     .num_sequences = num_requests_,
                     .max_slice_tokens = num_tokens_,
                     .num_last_tokens = has_confidence ? 1 : 0,
                     .num_draws = static_cast<std::int32_t>(num_draws),
                     .generation = generation_ + (block_batch_.generation() << 32)},
                    operations);
}

void DsparkDrafter::draft(const ops::OpContext& context, std::span<const DraftRequest> requests,
                          std::int32_t num_tokens, const ops::CacheView& cache) {
  place_requests(requests, num_tokens, cache.layout->shape().block_tokens, {});
  make_room(num_requests_, num_tokens);
  if (block_batch_.view().num_tokens == 0) return;
  record(cache, 0, false, [&] { run_block(context, cache); });
}

bool DsparkDrafter::can_draw() const {
  return backend_.sample != nullptr && config_.vocab_size <= ops::kMaxSampleVocab;
}

void DsparkDrafter::draft_and_draw(const ops::OpContext& context,
                                   std::span<const DraftRequest> requests, std::int32_t num_tokens,
                                   const ops::CacheView& cache, const BlockDraws& outputs) {
  const std::size_t total = requests.size();
  const std::size_t count = total * static_cast<std::size_t>(num_tokens);
  const bool wants_confidence = !outputs.confidence.empty();
  require(can_draw() && outputs.draws.size() == count && outputs.drawn.size() == count,
          "{} draws of {} tokens", outputs.draws.size(), count);
  require(!wants_confidence || (has_confidence() && outputs.confidence.size() == count),
          "confidence of {} tokens", outputs.confidence.size());
  std::vector<ops::Drawn> drawn;
  std::vector<float> confidence;
  for (std::size_t first = 0; first < total; first += kMostDrawnRequests) {
    const std::size_t size = std::min(kMostDrawnRequests, total - first);
    const auto place_of = [&](std::size_t i) { return i / size * total + first + i % size; };
    drawn.resize(size * static_cast<std::size_t>(num_tokens));
    confidence.resize(wants_confidence ? drawn.size() : 0);
    draws_.clear();
    for (std::size_t i = 0; i < drawn.size(); ++i) {
      draws_.push_back(outputs.draws[place_of(i)]);
      draws_.back().row =
          static_cast<std::int32_t>(i % size * static_cast<std::size_t>(num_tokens) + i / size);
    }
    draw_round(context, requests.subspan(first, size), num_tokens, cache,
               {.draws = draws_, .drawn = drawn, .confidence = confidence});
    for (std::size_t i = 0; i < drawn.size(); ++i) {
      outputs.drawn[place_of(i)] = drawn[i];
      if (wants_confidence) outputs.confidence[place_of(i)] = confidence[i];
    }
  }
}

/// At most kMostDrawnRequests; draws know their rows.
void DsparkDrafter::draw_round(const ops::OpContext& context,
                               std::span<const DraftRequest> requests, std::int32_t num_tokens,
                               const ops::CacheView& cache, const BlockDraws& outputs) {
  const bool wants_confidence = !outputs.confidence.empty();
  place_requests(requests, num_tokens, cache.layout->shape().block_tokens, outputs.draws);
  make_room(num_requests_, num_tokens);
  record(cache, std::ssize(outputs.draws), wants_confidence, [&] {
    run_block(context, cache);
    // Tokens before a slot: the anchors, each first of its block; then those of the slot before.
    const std::int32_t* previous = block_batch_.values();
    std::int64_t stride = num_tokens_;
    for (std::int32_t slot = 0; slot < num_tokens_; ++slot) {
      add_bias(context, slot, previous, stride);
      if (wants_confidence) score_confidence(context, slot);
      draw(context, slot);
      previous = &drawn_.data()[std::int64_t{slot} * num_requests_].token;
      stride = sizeof(ops::Drawn) / sizeof(TokenId);
    }
  });
  backend_.memory->download(outputs.drawn.data(), drawn_.data(),
                            static_cast<std::int64_t>(outputs.drawn.size_bytes()));
  if (wants_confidence) download_confidence(0, outputs.confidence);
}

void DsparkDrafter::draw(const ops::OpContext& context, std::int32_t slot) {
  const std::int64_t first = std::int64_t{slot} * num_requests_;
  backend_.sample(context, {.logits = logits_.data(),
                            .vocab_size = config_.vocab_size,
                            .draws = block_batch_.draws() + first,
                            .num_draws = num_requests_,
                            .out = drawn_.data() + first});
}

void DsparkDrafter::run_block(const ops::OpContext& context, const ops::CacheView& cache) {
  const std::int64_t rows = block_batch_.view().num_tokens;
  const std::int64_t hidden = config_.hidden_size;
  backend_.embed(context, {.tokens = block_batch_.values(),
                           .num_tokens = rows,
                           .table = tables_.embedding,
                           .table_scheme = tables_.embedding_scheme,
                           .hidden = hidden,
                           .out = x_.data()});
  for (int layer = 0; layer < config_.num_layers; ++layer) run_layer(context, layer, cache);
  norm(context, x_.data(), weights_.final_norm, rows, hidden_.data());
  backend_.linear(context, {.x = hidden_.data(),
                            .x_stride = hidden,
                            .w = tables_.lm_head,
                            .y = logits_.data(),
                            .y_stride = config_.vocab_size,
                            .num_rows = rows});
}

void DsparkDrafter::run_layer(const ops::OpContext& context, int layer,
                              const ops::CacheView& cache) {
  const PackedDrafterLayer& weights = weights_.layers[static_cast<std::size_t>(layer)];
  const ops::AttentionShape shape = attention_shape();
  const ops::BatchView& batch = block_batch_.view();
  const std::int64_t hidden = config_.hidden_size;
  const std::int64_t heads = std::int64_t{shape.num_heads} * shape.head_dim;
  norm(context, x_.data(), weights.input_norm, batch.num_tokens, normed_.data());
  backend_.linear(context, {.x = normed_.data(),
                            .x_stride = hidden,
                            .w = weights.qkv.get(),
                            .y = qkv_.data(),
                            .y_stride = weights.qkv->rows(),
                            .num_rows = batch.num_tokens});
  backend_.draft_heads(context, {.qkv = qkv_.data(),
                                 .q_norm = weights.q_norm.data(),
                                 .k_norm = weights.k_norm.data(),
                                 .norm_offset = norm_offset(),
                                 .eps = rms_eps(),
                                 .rope = rope_.table(),
                                 .shape = shape,
                                 .batch = batch});
  backend_.draft_attention(context, {.qkv = qkv_.data(),
                                     .shape = shape,
                                     .scale = static_cast<float>(1.0 / std::sqrt(shape.head_dim)),
                                     .layer = layer,
                                     .window = config_.sliding_window,
                                     .batch = batch,
                                     .cache = cache,
                                     .out = attended_.data()});
  backend_.linear(context, {.x = attended_.data(),
                            .x_stride = heads,
                            .w = weights.output.get(),
                            .y = x_.data(),
                            .y_stride = hidden,
                            .num_rows = batch.num_tokens,
                            .accumulate = true});
  norm(context, x_.data(), weights.attention_norm, batch.num_tokens, normed_.data());
  backend_.mlp(context, {.h = normed_.data(),
                         .num_tokens = batch.num_tokens,
                         .weights = weights.mlp.view(),
                         .constants = {.alpha = static_cast<float>(config_.swiglu_alpha),
                                       .limit = static_cast<float>(config_.swiglu_limit),
                                       .offset = static_cast<float>(config_.swiglu_offset)},
                         .y = x_.data(),
                         .accumulate = true});
}

void DsparkDrafter::step(const ops::OpContext& context, std::int32_t slot,
                         std::span<const TokenId> previous, std::span<float> confidence) {
  require(slot >= 0 && slot < num_tokens_ && std::ssize(previous) == num_requests_,
          "slot {} of {} with {} tokens before it", slot, num_tokens_, previous.size());
  require(confidence.empty() || (has_confidence() && confidence.size() == previous.size()),
          "confidence of {} requests", confidence.size());
  for (const TokenId token : previous) {
    require(token >= 0 && token < config_.vocab_size, "token {} of {}", token, config_.vocab_size);
  }
  if (previous.empty()) return;
  backend_.memory->upload(previous_.data(), previous.data(),
                          static_cast<std::int64_t>(previous.size_bytes()));
  add_bias(context, slot, previous_.data(), 1);
  if (confidence.empty()) return;
  score_confidence(context, slot);
  download_confidence(slot, confidence);
}

/// W2 · W1[previous] to every request's logits of the slot; the rows of W1 stay in token_rows_.
void DsparkDrafter::add_bias(const ops::OpContext& context, std::int32_t slot,
                             const std::int32_t* previous, std::int64_t stride) {
  backend_.embed(context, {.tokens = previous,
                           .token_stride = stride,
                           .num_tokens = num_requests_,
                           .table = weights_.markov_w1.rows,
                           .table_scheme = weights_.markov_w1.scheme,
                           .hidden = config_.markov_rank,
                           .out = token_rows_.data()});
  const std::int64_t vocab = config_.vocab_size;
  backend_.linear(context, {.x = token_rows_.data(),
                            .x_stride = config_.markov_rank,
                            .w = weights_.markov_w2.get(),
                            .y = logits_.data() + slot * vocab,
                            .y_stride = num_tokens_ * vocab,
                            .num_rows = num_requests_,
                            .accumulate = true});
}

/// wc · [hidden; W1 row] of a slot, with the rows of W1 in token_rows_.
void DsparkDrafter::score_confidence(const ops::OpContext& context, std::int32_t slot) {
  const std::int64_t hidden = config_.hidden_size;
  float* const scores = confidence_.data() + std::int64_t{slot} * num_requests_;
  backend_.linear(context, {.x = hidden_.data() + slot * hidden,
                            .x_stride = num_tokens_ * hidden,
                            .w = weights_.confidence_hidden.get(),
                            .y = scores,
                            .y_stride = 1,
                            .num_rows = num_requests_});
  if (weights_.confidence_markov == nullptr) return;
  backend_.linear(context, {.x = token_rows_.data(),
                            .x_stride = config_.markov_rank,
                            .w = weights_.confidence_markov.get(),
                            .y = scores,
                            .y_stride = 1,
                            .num_rows = num_requests_,
                            .accumulate = true});
}

/// sigmoid(score + bc) of slots from first_slot on.
void DsparkDrafter::download_confidence(std::int32_t first_slot, std::span<float> confidence) {
  backend_.memory->download(confidence.data(),
                            confidence_.data() + std::int64_t{first_slot} * num_requests_,
                            static_cast<std::int64_t>(confidence.size_bytes()));
  for (float& c : confidence) c = ops::fast_sigmoid(c + weights_.confidence_bias);
}

LoadedDrafter load_drafter(const std::filesystem::path& folder, const ModelConfig& target,
                           const SharedTables& tables, const ops::Backend& backend,
                           std::int64_t max_positions, const PackingProgress& progress) {
  DrafterConfig config = read_drafter_config(folder, target);
  auto checkpoint = std::make_unique<const Checkpoint>(find_drafter(folder));
  const DrafterWeights weights = load_drafter_weights(*checkpoint, config);
  PackedDrafter packed = pack_drafter(*checkpoint, config, weights, backend, progress);
  auto drafter = std::make_unique<DsparkDrafter>(std::move(config), std::move(packed), tables,
                                                 backend, max_positions);
  return {.checkpoint = std::move(checkpoint), .drafter = std::move(drafter)};
}

}  // namespace winnow
