// A model of a few lines whose logits depend on every slot that the block tables point to: a wrong
// table, a stale block, a lost copy or a skipped token changes what it says. For tests.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/sample/sampler.h"
#include "model/model_runner.h"

namespace winnow::testing {

struct FakeRunnerOptions {
  std::int32_t vocab_size = 64;
  std::int32_t block_tokens = 8;
  std::int32_t num_blocks = 64;
  std::uint64_t weights = 1;         // another value is another model
  float logit_range = 8.0F;          // logits lie in [-range / 2, range / 2)
  std::int32_t max_drafts = 0;       // not 0: it drafts so many tokens
  std::int32_t percent_right = 70;   // of drafts, those from the target's own logits
  bool has_confidence = false;       // it tells drafts from its own logits from others
  std::int32_t num_token_masks = 0;  // not 0: it draws, and tells of no row that is not wanted
  bool draws_drafts = false;         // it draws its drafts, too
};

/// Changes some rows of logits, and what it wrote to the cache is nobody else's to read.
class ToyAdapter final : public ModelAdapter {
 public:
  explicit ToyAdapter(std::uint64_t fingerprint) : fingerprint_(fingerprint) {}
  std::int64_t num_bytes() const override { return 64; }
  std::uint64_t fingerprint() const override { return fingerprint_; }
  std::int32_t rank() const override { return 1; }

 private:
  std::uint64_t fingerprint_;
};

class FakeRunner final : public ModelRunner {
 public:
  explicit FakeRunner(const FakeRunnerOptions& options);

  std::int32_t vocab_size() const override { return options_.vocab_size; }
  std::int32_t block_tokens() const override { return options_.block_tokens; }
  std::int32_t num_blocks() const override { return options_.num_blocks; }
  std::uint64_t cache_identity() const override { return options_.weights; }
  bool is_healthy() const override { return is_healthy_; }
  void run(const Batch& batch, std::span<float> logits) override;
  std::int32_t num_token_masks() const override { return static_cast<std::int32_t>(masks_.size()); }
  void set_token_mask(std::int32_t mask, std::span<const std::uint32_t> banned) override;
  void run_and_draw(const Batch& batch, const StepOutputs& outputs) override;
  SelectionShape selection_shape() const override;
  /// Of a row: numbers that depend on everything before it, as its logits do.
  std::span<const std::int32_t> selections() const override { return selections_; }
  void copy_block(BlockId from, BlockId to) override;
  ThreadPool* compute_pool() override { return pool; }
  std::int32_t max_draft_tokens() const override { return options_.max_drafts; }
  /// Spoils the slots of what was not committed: nobody may read them again.
  void commit_context(std::span<const ContextSlice> slices) override;
  void draft(std::span<const DraftRequest> requests, std::int32_t num_tokens) override;
  bool has_draft_confidence() const override { return options_.has_confidence; }
  void draft_step(std::int32_t slot, std::span<const TokenId> previous,
                  std::span<float> confidence) override;
  const float* draft_logits() override { return draft_logits_.data(); }
  bool can_draw_drafts() const override { return options_.draws_drafts; }
  void draft_and_draw(std::span<const DraftRequest> requests, std::int32_t num_tokens,
                      const BlockDraws& outputs) override;

  ThreadPool* pool = nullptr;

  /// Steps that hold this token throw, after spoiling every slot they were to write; -1: none.
  TokenId failing_token = -1;
  /// Logits right after this token are NaN; -1: none.
  TokenId nan_token = -1;
  /// Called at the start of each step.
  std::function<void(const Batch&)> before_step;
  void break_device() { is_healthy_ = false; }
  void set_weights(std::uint64_t weights) { options_.weights = weights; }
  /// Writes garbage to every slot: what a pool holds before its first use.
  void poison_pool();

  std::int64_t num_steps = 0;
  std::int64_t num_tokens = 0;
  /// Read, but not written for that position and adapter: always a fault.
  std::int64_t num_foreign_slots = 0;
  std::int32_t max_batch_tokens = 0;
  std::int32_t max_batch_adapters = 0;  // different ones
  std::int64_t num_blind_slots = 0;     // read by a draft, but their context was never committed
  bool fails_to_draft = false;          // draft() throws
  bool fails_to_commit = false;         // commit_context() throws
  std::int64_t num_draws = 0;
  std::int64_t num_masks_set = 0;
  std::int64_t num_drawn_drafts = 0;

 private:
  struct Slot {
    std::uint64_t key = 0;
    std::uint64_t value = 0;  // of this and, through the block table, all earlier tokens
    std::int32_t position = -1;
    std::uint64_t context = 0;  // the drafter's: `value` once committed
    std::uint64_t adapter = 0;  // its fingerprint
  };
  /// A sequence as far as the draft in progress has come.
  struct Draft {
    std::uint64_t state = 0, history = 0;
    std::int32_t position = 0;  // of the next token
  };
  ops::Drawn draw_from(std::span<const float> logits, const ops::Draw& draw);
  Slot make_slot(TokenId token, std::int32_t position, std::uint64_t history) const;
  void fill_row(std::uint64_t state, std::span<float> row) const;
  Slot& slot(std::span<const BlockId> block_table, std::int32_t position);
  Slot& slot(const BatchSequence& sequence, std::int32_t position) {
    return slot(sequence.block_table, position);
  }
  void count_adapters(const Batch& batch);
  void write(const Batch& batch, const BatchSequence& sequence);
  /// What the logits were made from.
  std::uint64_t fill_logits(const Batch& batch, const BatchSequence& sequence, std::int32_t token,
                            std::span<float> row);
  void add_selection(std::uint64_t state);

  FakeRunnerOptions options_;
  bool is_healthy_ = true;
  std::vector<Slot> slots_;  // [num_blocks][block_tokens]
  std::vector<std::vector<std::uint32_t>> masks_;
  SampleScratch scratch_;
  std::vector<BatchSequence> last_sequences_;  // of the last step
  std::vector<Draft> drafts_;
  std::int32_t num_draft_tokens_ = 0;
  std::vector<std::int32_t> selections_;
  std::vector<float> draft_logits_;  // [requests][num_draft_tokens_][vocab_size]
};

}  // namespace winnow::testing
