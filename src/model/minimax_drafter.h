// The DSpark drafter of MiniMax-M3.1: MiniMax layers over a block of anchor and noise tokens, a
// rank-r Markov bias and a confidence head (spec/speculative.md 2).
#pragma once

#include <filesystem>
#include <memory>

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

class MinimaxDrafter final : public Drafter {
 public:
  /// `max_positions`: of one sequence, drafted ones included. `target`'s tables and, on a CPU, the
  /// mapping behind `weights` must outlive this. Throws Error{kUnsupported} when the backend lacks
  /// the drafter's operations.
  MinimaxDrafter(DrafterConfig config, PackedDrafter weights, const SharedTables& target,
                 ops::Backend backend, std::int64_t max_positions);
  ~MinimaxDrafter() override;

  const DrafterConfig& config() const { return config_; }

  std::span<const std::int32_t> target_layers() const override { return config_.target_layers; }
  std::int32_t max_draft_tokens() const override { return config_.block_size; }
  std::int32_t window() const override { return config_.sliding_window; }
  CacheRowShape::Drafter cache_shape(CacheDType dtype) const override {
    return drafter_cache_shape(config_, dtype);
  }
  bool has_confidence() const override { return config_.has_confidence_head; }
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

 private:
  ops::AttentionShape attention_shape() const;
  void place_requests(std::span<const DraftRequest> requests, std::int32_t num_tokens,
                      std::int32_t block_tokens);
  void run_layer(const ops::OpContext& context, int layer, const ops::CacheView& cache);
  void norm(const ops::OpContext& context, const float* x, const ops::Array<float>& weight,
            std::int64_t num_rows, float* out);
  void estimate_confidence(const ops::OpContext& context, std::int32_t slot,
                           std::span<float> confidence);

  DrafterConfig config_;
  PackedDrafter weights_;
  SharedTables target_;
  ops::Backend backend_;
  RopeCache rope_;

  DraftBatch context_batch_;
  DraftBatch block_batch_;
  std::int32_t num_requests_ = 0;  // of the last draft
  std::int32_t num_tokens_ = 0;    // of each

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
  ops::Array<float> confidence_;       // [requests]
};

struct LoadedDrafter {
  std::unique_ptr<const Checkpoint> checkpoint;  // W1 is read from its mapping
  std::unique_ptr<MinimaxDrafter> drafter;
};

/// From find_drafter(folder), `folder` being the target's or the drafter's own. Throws Error on
/// whatever is wrong with it.
LoadedDrafter load_drafter(const std::filesystem::path& folder, const ModelConfig& target,
                           const SharedTables& tables, const ops::Backend& backend,
                           std::int64_t max_positions, const PackingProgress& progress = {});

}  // namespace winnow
