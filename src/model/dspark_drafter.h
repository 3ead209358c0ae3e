// The DSpark drafter: layers over a block of anchor and noise tokens, a rank-r Markov bias and a
// confidence head (spec/speculative.md 2). MiniMax layers (M3.1's) and Qwen3 layers (M3's) take the
// same steps; what differs (norm, rotated dims, activation, window) is in DrafterConfig, as
// numbers.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/drafter_config.h"
#include "model/draft_batch.h"
#include "model/drafter.h"
#include "model/packed_drafter.h"
#include "model/rope.h"

namespace winnow {

/// What the target's cache row must hold for the drafter: DecoderOptions::drafter_cache. Throws
/// Error{kUnsupported} for nvfp4.
CacheRowShape::Drafter drafter_cache_shape(const DrafterConfig& config, CacheDType dtype);

class DsparkDrafter final : public Drafter {
 public:
  /// `max_positions`: of one sequence, drafted ones included. `target`'s tables and, on a CPU, the
  /// mapping behind `weights` must outlive this. Throws Error{kUnsupported} when the backend lacks
  /// the drafter's operations.
  DsparkDrafter(DrafterConfig config, PackedDrafter weights, const SharedTables& target,
                ops::Backend backend, std::int64_t max_positions);
  ~DsparkDrafter() override;

  const DrafterConfig& config() const { return config_; }

  std::span<const std::int32_t> target_layers() const override { return config_.target_layers; }
  std::int32_t max_draft_tokens() const override { return config_.block_size; }
  std::int32_t window() const override { return config_.sliding_window; }
  CacheRowShape::Drafter cache_shape(CacheDType dtype) const override {
    return drafter_cache_shape(config_, dtype);
  }
  bool has_confidence() const override { return weights_.confidence_hidden != nullptr; }
  std::int64_t weight_bytes() const override { return weights_.num_bytes(); }
  std::uint64_t fingerprint() const override { return weights_.fingerprint; }

  void insert_context(const ops::OpContext& context, std::span<const float* const> streams,
                      std::span<const ContextSlice> slices, const ops::CacheView& cache) override;
  void draft(const ops::OpContext& context, std::span<const DraftRequest> requests,
             std::int32_t num_tokens, const ops::CacheView& cache) override;
  float* logits() override { return logits_.data(); }
  const float* hidden() const override { return hidden_.data(); }
  void step(const ops::OpContext& context, std::int32_t slot, std::span<const TokenId> previous,
            std::span<float> confidence) override;
  bool can_draw() const override;
  void draft_and_draw(const ops::OpContext& context, std::span<const DraftRequest> requests,
                      std::int32_t num_tokens, const ops::CacheView& cache,
                      const BlockDraws& outputs) override;

 private:
  ops::AttentionShape attention_shape() const;
  ops::WorkLimits work_limits() const;
  float rms_eps() const { return static_cast<float>(config_.rms_eps); }
  float norm_offset() const { return static_cast<float>(config_.norm_offset); }
  template <typename T>
  void grow(ops::Array<T>& array, std::int64_t count);
  void place_requests(std::span<const DraftRequest> requests, std::int32_t num_tokens,
                      std::int32_t block_tokens, std::span<const ops::Draw> draws);
  void draw_round(const ops::OpContext& context, std::span<const DraftRequest> requests,
                  std::int32_t num_tokens, const ops::CacheView& cache, const BlockDraws& outputs);
  void make_context_room(std::int64_t num_tokens);
  void make_room(std::int64_t num_requests, std::int64_t num_tokens);
  void record(const ops::CacheView& cache, std::int64_t num_draws, bool has_confidence,
              const std::function<void()>& operations);
  void run_block(const ops::OpContext& context, const ops::CacheView& cache);
  void run_layer(const ops::OpContext& context, int layer, const ops::CacheView& cache);
  void norm(const ops::OpContext& context, const float* x, const ops::Array<float>& weight,
            std::int64_t num_rows, float* out);
  void add_bias(const ops::OpContext& context, std::int32_t slot, const std::int32_t* previous,
                std::int64_t stride);
  void draw(const ops::OpContext& context, std::int32_t slot);
  void score_confidence(const ops::OpContext& context, std::int32_t slot);
  void download_confidence(std::int32_t first_slot, std::span<float> confidence);

  DrafterConfig config_;
  PackedDrafter weights_;
  SharedTables tables_;  // the target's, or the drafter's own
  ops::Backend backend_;
  RopeCache rope_;

  DraftBatch context_batch_;
  DraftBatch block_batch_;
  std::vector<ops::Draw> draws_;     // of the running round
  std::int32_t num_requests_ = 0;    // of the last draft
  std::int32_t num_tokens_ = 0;      // of each
  std::int64_t generation_ = 0;      // changes when an array below, or the cache, has moved
  const std::byte* pool_ = nullptr;  // of the last draft

  // Arrays only grow: with the chunk of a context and with the largest draft.
  ops::Array<float> stream_;           // [chunk][hidden] rows of one stream
  ops::Array<float> fused_;            // [chunk][hidden] fc and its norm
  ops::Array<float> projected_;        // [chunk][layers][k heads, v heads][head_dim]
  ops::Array<float> x_;                // [rows][hidden] the block's residual
  ops::Array<float> normed_;           // [rows][hidden]
  ops::Array<float> qkv_;              // [rows][q heads, k heads, v heads][head_dim]
  ops::Array<float> attended_;         // [rows][heads][head_dim]
  ops::Array<float> hidden_;           // [rows][hidden] after the final norm
  ops::Array<float> logits_;           // [rows][vocab]
  ops::Array<std::int32_t> previous_;  // [requests]
  ops::Array<float> token_rows_;       // [requests][rank] rows of W1
  ops::Array<ops::Drawn> drawn_;       // [slots][requests]
  ops::Array<float> confidence_;       // [slots][requests], without bias and sigmoid
};

struct LoadedDrafter {
  std::unique_ptr<const Checkpoint> checkpoint;  // its tables are read from the mapping
  std::unique_ptr<DsparkDrafter> drafter;
};

/// From find_drafter(folder), `folder` being the target's or the drafter's own. Throws Error on
/// whatever is wrong with it.
LoadedDrafter load_drafter(const std::filesystem::path& folder, const ModelConfig& target,
                           const SharedTables& tables, const ops::Backend& backend,
                           std::int64_t max_positions, const PackingProgress& progress = {});

}  // namespace winnow
