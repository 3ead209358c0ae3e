#include "model/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/lora_adapter.h"
#include "model/decoder_workspace.h"

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
                         .drafter = options.drafter_cache});
}

DequantMode default_mode(const ModelConfig& config) {
  return config.default_cache_dtype() == CacheDType::kNvfp4 ? DequantMode::kE4M3
                                                            : DequantMode::kExact;
}

void check_captured_layers(const std::vector<std::int32_t>& layers, std::int32_t num_layers) {
  std::int32_t previous = -1;
  for (const std::int32_t layer : layers) {
    if (layer <= previous || layer >= num_layers) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("captured layer {}, expected ascending layers below {}", layer, num_layers));
    }
    previous = layer;
  }
}

/// FNV-1a over the bytes of a few integers.
std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8) {
    hash = (hash ^ (value >> shift & 0xFFU)) * 0x100000001B3U;
  }
  return hash;
}

}  // namespace

/// Rows of logits that page-locked memory is held for: more are rare, and are copied slowly.
constexpr std::int64_t kRoomRows = 32;

/// Sets of banned tokens on a device: the server's own, and those of requests that have others.
constexpr std::int32_t kTokenMasks = 16;

/// A step with a longer slice is not recorded: prefill chunks differ too much to come again.
constexpr std::int32_t kMaxRecordedSlice = 16;

/// Launch bounds grow in powers of two, so that a recorded step serves while a context grows.
constexpr std::int64_t kMinBoundPositions = 4096;

Decoder::Decoder(ModelConfig config, PackedWeights weights, ops::Backend backend,
                 const DecoderOptions& options)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      backend_(std::move(backend)),
      layout_(make_layout(config_, options)),
      dequant_(options.dequant.value_or(default_mode(config_))),
      options_(options),
      rope_(config_.rope_theta, config_.rotary_dim,
            std::max(config_.max_position_embeddings, options.max_positions), backend_.memory),
      placed_(backend_.memory),
      kept_blocks_(backend_.memory, std::ssize(config_.sparse_layers()),
                   std::int64_t{config_.index_num_heads} * config_.top_k_blocks),
      work_(std::make_unique<Workspace>(config_, options.max_num_batched_tokens,
                                        options.captured_layers.size(), backend_.memory)) {
  check_captured_layers(options.captured_layers, config_.num_layers);
  for (const ops::Array<float>& stream : work_->streams) captured_.push_back(stream.data());
  step_.reserve(options.max_num_batched_tokens);
  last_step_.reserve(options.max_num_batched_tokens);
  if (backend_.reserve) backend_.reserve(work_limits());
  if (backend_.staging != nullptr) {
    const std::int64_t rows = std::min<std::int64_t>(options.max_num_batched_tokens, kRoomRows);
    logits_room_ = {backend_.staging, rows * config_.vocab_size, "logits of a step"};
  }
  if (backend_.sample != nullptr && config_.vocab_size <= ops::kMaxSampleVocab) {
    masks_ = {backend_.memory, kTokenMasks * ops::mask_words(config_.vocab_size), "token masks"};
  }
  spdlog::info("backend {}; KV cache {}, index cache {}, dequantisation {}; {} bytes per token",
               backend_.name, cache_dtype_name(layout_.shape().kv_dtype),
               cache_dtype_name(layout_.shape().index_dtype), dequant_mode_name(dequant_),
               layout_.bytes_per_token());
  if (options.num_blocks > 0) allocate_pool(options.num_blocks);
}

Decoder::~Decoder() = default;

void Decoder::allocate_pool(std::int32_t num_blocks) {
  pool_ = {};
  pool_ = ops::Array<std::byte>(backend_.memory, layout_.row_bytes() * num_blocks, "the KV pool");
  num_blocks_ = num_blocks;
  ++generation_;
}

ops::CacheView Decoder::cache_view() const {
  return {.pool = pool_.data(), .layout = &layout_, .mode = dequant_};
}

void Decoder::copy_block(BlockId from, BlockId to) {
  const auto is_row = [&](BlockId id) { return id.value >= 0 && id.value < num_blocks_; };
  WINNOW_ASSERT(is_row(from) && is_row(to), "a block of the pool", from.value, to.value);
  backend_.memory->copy(pool_.data() + to.value * layout_.row_bytes(),
                        pool_.data() + from.value * layout_.row_bytes(), layout_.row_bytes());
}

std::uint64_t Decoder::cache_identity() const {
  const CacheRowShape& shape = layout_.shape();
  std::uint64_t hash = mix(0xCBF29CE484222325U, weights_.fingerprint);
  hash = mix(hash, static_cast<std::uint64_t>(shape.kv_dtype));
  hash = mix(hash, static_cast<std::uint64_t>(shape.index_dtype));
  hash = mix(hash, static_cast<std::uint64_t>(dequant_));
  if (shape.drafter) hash = mix(hash, 1 + static_cast<std::uint64_t>(shape.drafter->dtype));
  if (drafter_ != nullptr) hash = mix(hash, drafter_->fingerprint());
  return hash;
}

std::shared_ptr<const ModelAdapter> Decoder::load_adapter(const std::filesystem::path& folder,
                                                          const AdapterLimits& limits) {
  const LoraAdapter adapter(folder, config_, limits.max_rank);
  return std::make_shared<PackedAdapter>(adapter, config_, backend_);
}

void Decoder::set_drafter(Drafter* drafter) {
  if (drafter != nullptr) {
    if (!std::ranges::equal(drafter->target_layers(), options_.captured_layers)) {
      throw Error(ErrorCode::kInvalidArgument,
                  "the layers that are captured are not those that the drafter reads");
    }
  }
  drafter_ = drafter;
}

std::int32_t Decoder::max_draft_tokens() const {
  return drafter_ != nullptr ? drafter_->max_draft_tokens() : 0;
}

void Decoder::commit_context(std::span<const ContextSlice> slices) {
  drafter_->insert_context(context_, captured(), slices, cache_view());
}

void Decoder::draft(std::span<const DraftRequest> requests, std::int32_t num_tokens) {
  num_draft_tokens_ = num_tokens;
  drafter_->draft(context_, requests, num_tokens, cache_view());
}

bool Decoder::has_draft_confidence() const {
  return drafter_ != nullptr && drafter_->has_confidence();
}

void Decoder::draft_step(std::int32_t slot, std::span<const TokenId> previous,
                         std::span<float> confidence) {
  drafter_->step(context_, slot, previous, confidence);
  if (!backend_.memory->is_host()) download_drafts(slot, std::ssize(previous));
}

/// A slot's logits of every request.
void Decoder::download_drafts(std::int32_t slot, std::int64_t num_requests) {
  const std::int64_t width = vocab_size();
  draft_logits_.resize(static_cast<std::size_t>(num_requests * num_draft_tokens_ * width));
  for (std::int64_t i = 0; i < num_requests; ++i) {
    const std::int64_t at = (i * num_draft_tokens_ + slot) * width;
    backend_.memory->download(draft_logits_.data() + at, drafter_->logits() + at,
                              width * std::int64_t{sizeof(float)});
  }
}

const float* Decoder::draft_logits() {
  return backend_.memory->is_host() ? drafter_->logits() : draft_logits_.data();
}

bool Decoder::can_draw_drafts() const { return drafter_ != nullptr && drafter_->can_draw(); }

void Decoder::draft_and_draw(std::span<const DraftRequest> requests, std::int32_t num_tokens,
                             const BlockDraws& outputs) {
  drafter_->draft_and_draw(context_, requests, num_tokens, cache_view(), outputs);
}

ops::WorkLimits Decoder::work_limits() const {
  const std::vector<int> sparse = config_.sparse_layers();
  ops::WorkLimits limits{.max_tokens = options_.max_num_batched_tokens,
                         .max_positions = rope_.max_positions(),
                         .hidden = config_.hidden_size,
                         .num_experts = 0,
                         .top_k_experts = config_.top_k_experts,
                         .attention = attention_shape(sparse.empty() ? 0 : sparse.front())};
  const auto widen = [](std::int64_t& width, const std::unique_ptr<ops::PackedMatrix>& down) {
    if (down != nullptr) width = std::max(width, down->cols());
  };
  for (const PackedLayer& layer : weights_.layers) {
    limits.qkv_rows = std::max(limits.qkv_rows, layer.qkv->rows());
    limits.num_experts = std::max(limits.num_experts, std::ssize(layer.moe.experts));
    widen(limits.mlp_width, layer.mlp.down);
    widen(limits.mlp_width, layer.moe.shared.down);
    for (const PackedMlp& expert : layer.moe.experts) widen(limits.expert_width, expert.down);
  }
  return limits;
}

/// Checks the batch, places it where the backend reads it, and says what a recording of it needs.
ops::StepKey Decoder::prepare(const Batch& batch, std::span<const ops::Draw> draws) {
  step_.assign(batch, {.max_num_tokens = options_.max_num_batched_tokens,
                       .vocab_size = config_.vocab_size,
                       .block_tokens = config_.block_tokens,
                       .num_blocks = num_blocks_,
                       .max_positions = rope_.max_positions()});
  adapters_.assign(step_.adapters(), backend_.memory.get());
  last_step_ = step_;
  if (!needs_every_row()) last_step_.keep_logit_rows();
  rope_.extend_to(step_.num_positions());
  std::int64_t bound = step_.num_positions();
  if (!backend_.memory->is_host()) {
    bound = kMinBoundPositions;
    while (bound < step_.num_positions()) bound *= 2;
    bound = std::min(bound, rope_.max_positions());
  }
  // As many draws as rows, so that who needs a row itself makes no other key.
  draws_.assign(draws.begin(), draws.end());
  if (!draws.empty()) draws_.resize(std::max(draws.size(), batch.logit_rows.size()));
  if (std::ssize(draws_) > drawn_.size()) {
    drawn_ = {backend_.staging, 2 * std::ssize(draws_), "drawn tokens"};
    ++generation_;
  }
  placed_.place(batch, step_, last_step_, static_cast<std::int32_t>(bound), draws_);
  return {.num_tokens = placed_.all().num_tokens,
          .num_sequences = static_cast<std::int32_t>(placed_.all().sequences.size()),
          .max_slice_tokens = placed_.all().max_slice_tokens,
          .num_last_tokens = placed_.last().num_tokens,
          .max_last_slice_tokens = placed_.last().max_slice_tokens,
          .num_logit_rows = static_cast<std::int32_t>(last_step_.logit_rows().size()),
          .num_draws = static_cast<std::int32_t>(draws_.size()),
          .num_positions = static_cast<std::int32_t>(bound),
          .generation = generation_ + (placed_.generation() << 32),
          .adapters = adapters_.serials()};
}

void Decoder::run(const Batch& batch, std::span<float> logits) {
  run_step(batch, {.logits = logits});
}

void Decoder::run_and_draw(const Batch& batch, const StepOutputs& outputs) {
  run_step(batch, outputs);
}

std::int32_t Decoder::num_token_masks() const { return masks_ ? kTokenMasks : 0; }

void Decoder::set_token_mask(std::int32_t mask, std::span<const std::uint32_t> banned) {
  backend_.memory->upload(masks_.data() + mask * std::ssize(banned), banned.data(),
                          static_cast<std::int64_t>(banned.size_bytes()));
}

float* Decoder::logits_room(std::int64_t num_rows) {
  return num_rows * vocab_size() <= logits_room_.size() ? logits_room_.data() : nullptr;
}

void Decoder::run_step(const Batch& batch, const StepOutputs& outputs) {
  if (threads_ == nullptr) {
    threads_ = std::make_unique<ThreadPool>(options_.num_threads, options_.pin_threads);
    context_ = {.pool = threads_.get(), .scratch = &scratch_, .cuda = backend_.cuda.get()};
  }
  const std::span<float> logits = outputs.logits;
  ops::StepKey key = prepare(batch, outputs.draws);
  kept_blocks_.clear();
  WINNOW_ASSERT(logits.size() == batch.logit_rows.size() * static_cast<std::size_t>(vocab_size()),
                "room for the logits of every row", logits.size(), batch.logit_rows.size());
  if (batch.tokens.empty()) return;

  const bool is_host = backend_.memory->is_host();
  const std::int64_t num_rows = key.num_logit_rows;
  const std::int64_t rows_at_once = is_host ? num_rows : std::min(num_rows, kDeviceLogitRows);
  const auto step = [&] {
    run_layers();
    if (rows_at_once == 0) return;
    write_logits(0, rows_at_once, is_host ? logits.data() : work_->logits.data());
    draw_tokens(0, rows_at_once);
  };
  const bool is_recorded = backend_.run_step && trace_ == nullptr &&
                           placed_.all().max_slice_tokens <= kMaxRecordedSlice &&
                           num_rows <= kDeviceLogitRows;
  keeps_blocks_ = begin_selections(batch, is_recorded, key);
  if (is_recorded) {
    backend_.run_step(key, step);
  } else {
    step();
  }
  if (keeps_blocks_) kept_blocks_.end(config_.layers.back().is_sparse_attention);
  if (is_host) return;
  for (std::int64_t done = 0; done < num_rows;) {
    const std::int64_t end = std::min(done + rows_at_once, num_rows);
    if (done > 0) {
      write_logits(done, end - done, work_->logits.data());
      draw_tokens(done, end);
    }
    download_rows(done, end, outputs);
    done = end;
  }
  if (outputs.draws.empty()) return;
  backend_.memory->finish();
  std::copy_n(drawn_.data(), outputs.drawn.size(), outputs.drawn.data());
}

SelectionShape Decoder::selection_shape() const {
  SelectionShape shape{.num_groups = config_.index_num_heads, .top_k = config_.top_k_blocks};
  for (const int layer : config_.sparse_layers()) shape.layers.push_back(layer);
  return shape;
}

bool Decoder::begin_selections(const Batch& batch, bool is_recorded, ops::StepKey& key) {
  if (batch.selection_rows.empty()) return false;
  const bool keeps = kept_blocks_.begin({.rows = batch.selection_rows,
                                         .tokens = batch.logit_rows,
                                         .last_rows = last_step_.logit_rows(),
                                         .num_tokens = placed_.all().num_tokens,
                                         .is_recorded = is_recorded});
  if (keeps) {
    key.kind = ops::StepKind::kTargetWithSelections;
    key.generation += kept_blocks_.generation() << 48;
  }
  return keeps;
}

/// From logit rows [first_row, end_row), which lie in the workspace.
void Decoder::draw_tokens(std::int64_t first_row, std::int64_t end_row) {
  if (draws_.empty()) return;
  // Padding comes last and draws nothing: it goes with the last rows.
  const auto place_of = [&](std::int64_t row) {
    return std::ranges::find_if(
               draws_, [&](const ops::Draw& draw) { return draw.row < 0 || draw.row >= row; }) -
           draws_.begin();
  };
  const std::int64_t begin = place_of(first_row);
  const std::int64_t end =
      end_row < std::ssize(last_step_.logit_rows()) ? place_of(end_row) : std::ssize(draws_);
  backend_.sample(context_, {.logits = work_->logits.data(),
                             .vocab_size = config_.vocab_size,
                             .first_row = static_cast<std::int32_t>(first_row),
                             .draws = placed_.draws() + begin,
                             .num_draws = static_cast<std::int32_t>(end - begin),
                             .masks = masks_.data(),
                             .out = drawn_.data() + begin});
}

/// The wanted ones of logit rows [first_row, end_row), which lie in the workspace.
void Decoder::download_rows(std::int64_t first_row, std::int64_t end_row,
                            const StepOutputs& outputs) {
  const auto is_wanted = [&](std::int64_t row) {
    return outputs.wants_row.empty() || outputs.wants_row[static_cast<std::size_t>(row)] != 0;
  };
  const std::int64_t width = vocab_size();
  for (std::int64_t row = first_row; row < end_row; ++row) {
    if (!is_wanted(row)) continue;
    const std::int64_t begin = row;
    while (row + 1 < end_row && is_wanted(row + 1)) ++row;
    backend_.memory->download(outputs.logits.data() + begin * width,
                              work_->logits.data() + (begin - first_row) * width,
                              (row + 1 - begin) * width * std::int64_t{sizeof(float)});
  }
}

}  // namespace winnow
