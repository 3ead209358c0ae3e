// The forward pass: a list of operations per layer, over a batch, on one backend.
//
// Threads: construct and allocate_pool() anywhere. The thread that first calls run() becomes the
// owner (in the server: the engine thread): the compute pool is made there, with that thread as its
// thread 0, and every later call must come from it.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "checkpoint/model_config.h"
#include "model/decoder_options.h"
#include "model/decoder_trace.h"
#include "model/flat_batch.h"
#include "model/kept_blocks.h"
#include "model/model_runner.h"
#include "model/packed_weights.h"
#include "model/placed_batch.h"
#include "model/rope.h"
#include "model/step_adapters.h"
#include "model/trace_relay.h"

namespace winnow {

class Decoder final : public ModelRunner {
 public:
  /// Throws Error{kInvalidArgument} on options that the model cannot have (nvfp4 with a head_dim
  /// that is no multiple of 16, …), Error{kOutOfMemory}.
  Decoder(ModelConfig config, PackedWeights weights, ops::Backend backend,
          const DecoderOptions& options);

  const ModelConfig& config() const { return config_; }
  const ops::Backend& backend() const { return backend_; }
  const CacheRowLayout& cache_layout() const { return layout_; }
  DequantMode dequant_mode() const { return dequant_; }
  std::int64_t weight_bytes() const { return weights_.num_bytes(); }

  /// The pool's rows; may be called again between steps, which forgets what was cached.
  void allocate_pool(std::int32_t num_blocks);
  /// Its pool lies in memory().
  ops::CacheView cache_view() const;
  const std::shared_ptr<ops::Memory>& memory() const { return backend_.memory; }

  /// The residual stream after each of DecoderOptions::captured_layers, both of the layer's sums
  /// added and no norm applied (spec/speculative.md 2.2): [tokens of the last step][hidden_size]
  /// each, rows in the order of its batch. Valid until the next step.
  std::span<const float* const> captured() const { return captured_; }
  /// What operations between two steps are lent, once a step has run: a drafter runs on the same
  /// threads and scratch. Owner's thread only.
  const ops::OpContext& op_context() const { return context_; }
  /// What a drafter reads of these weights, for as long as this lives.
  SharedTables shared_tables() const { return weights_.shared_tables(); }

  /// Null: none. Must outlive the steps it watches.
  void set_trace(DecoderTrace* trace) { trace_ = trace; }

  /// Makes this a drafting runner; null: it is none. The drafter outlives this. Throws
  /// Error{kInvalidArgument} unless its layers are the captured ones.
  void set_drafter(Drafter* drafter);
  std::int32_t max_draft_tokens() const override;
  void commit_context(std::span<const ContextSlice> slices) override;
  void draft(std::span<const DraftRequest> requests, std::int32_t num_tokens) override;
  bool has_draft_confidence() const override;
  void draft_step(std::int32_t slot, std::span<const TokenId> previous,
                  std::span<float> confidence) override;
  const float* draft_logits() override;
  bool can_draw_drafts() const override;
  void draft_and_draw(std::span<const DraftRequest> requests, std::int32_t num_tokens,
                      const BlockDraws& outputs) override;

  std::int32_t vocab_size() const override { return config_.vocab_size; }
  std::int32_t block_tokens() const override { return config_.block_tokens; }
  std::int32_t num_blocks() const override { return num_blocks_; }
  void run(const Batch& batch, std::span<float> logits) override;
  std::int32_t num_token_masks() const override;
  void set_token_mask(std::int32_t mask, std::span<const std::uint32_t> banned) override;
  void run_and_draw(const Batch& batch, const StepOutputs& outputs) override;
  SelectionShape selection_shape() const override;
  std::span<const std::int32_t> selections() const override { return kept_blocks_.selections(); }
  float* logits_room(std::int64_t num_rows) override;
  void copy_block(BlockId from, BlockId to) override;
  std::shared_ptr<const ModelAdapter> load_adapter(const std::filesystem::path& folder,
                                                   const AdapterLimits& limits) override;
  ThreadPool* compute_pool() override { return threads_.get(); }
  std::uint64_t cache_identity() const override;

 private:
  struct Workspace;

  ops::AttentionShape attention_shape(int layer) const;
  ops::WorkLimits work_limits() const;
  ops::StepKey prepare(const Batch& batch, std::span<const ops::Draw> draws);
  void run_step(const Batch& batch, const StepOutputs& outputs);
  void run_layers();
  void insert_keys(int layer, const PackedLayer& weights);
  void keep_logit_rows(int layer);
  bool begin_selections(const Batch& batch, bool is_recorded, ops::StepKey& key);
  void keep_blocks(int layer);
  void run_attention(int layer, const PackedLayer& weights);
  void run_mlp(int layer, const PackedLayer& weights);
  void capture(int layer);
  void download_drafts(std::int32_t slot, std::int64_t num_requests);
  bool needs_every_row() const;
  void write_logits(std::int64_t first_row, std::int64_t num_rows, float* logits);
  void draw_tokens(std::int64_t first_row, std::int64_t end_row);
  void download_rows(std::int64_t first_row, std::int64_t end_row, const StepOutputs& outputs);
  void norm(const float* x, const ops::Array<float>& weight, std::int64_t num_rows, float* out);

  ModelConfig config_;
  PackedWeights weights_;
  ops::Backend backend_;
  CacheRowLayout layout_;
  DequantMode dequant_;
  DecoderOptions options_;
  RopeCache rope_;
  ops::Array<std::byte> pool_;
  std::int64_t generation_ = 0;  // changes when one of the arrays here moves
  std::int32_t num_blocks_ = 0;
  DecoderTrace* trace_ = nullptr;
  Drafter* drafter_ = nullptr;
  std::int32_t num_draft_tokens_ = 0;  // of each request in the last draft()
  std::vector<float> draft_logits_;    // of a device, once they were stepped
  std::unique_ptr<TraceRelay> relay_;  // of the running step

  std::unique_ptr<ThreadPool> threads_;
  ops::Scratch scratch_;
  ops::OpContext context_;
  FlatBatch step_;       // every token of the step
  FlatBatch last_step_;  // those that the last layer goes on with
  PlacedBatch placed_;
  KeptBlocks kept_blocks_;
  bool keeps_blocks_ = false;                 // in this step
  std::vector<ops::Draw> draws_;              // of this step
  ops::Array<float> logits_room_;             // [rows][vocab_size] in Backend::staging
  ops::Array<ops::Drawn> drawn_;              // in Backend::staging
  ops::Array<std::uint32_t> masks_;           // [kTokenMasks][ops::mask_words(vocab_size)]
  ops::BatchView view_;                       // of the tokens that the current layer works on
  const std::int32_t* adapter_of_ = nullptr;  // of the same tokens
  StepAdapters adapters_;                     // of this step
  const StepAdapters::LayerRows* layer_adapters_ = nullptr;  // of the current layer; null: none
  std::unique_ptr<Workspace> work_;
  std::vector<const float*> captured_;  // the workspace's streams

 public:
  ~Decoder() override;
};

}  // namespace winnow
