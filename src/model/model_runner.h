// What the engine needs of a model: a pool of KV blocks and a forward pass over a batch. The
// decoder implements it (model/decoder.h); tests implement it with a few lines of arithmetic.
#pragma once

#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <span>
#include <vector>

#include "model/batch.h"
#include "model/drafter.h"
#include "model/model_adapter.h"
#include "ops/sample/sample.h"

namespace winnow {

class ThreadPool;

/// What is wanted of a step's rows of logits when the runner draws tokens itself.
struct StepOutputs {
  std::span<const ops::Draw> draws{};  // rows ascending
  std::span<ops::Drawn> drawn{};       // [draws.size()]
  /// [logit_rows]: not 0 where the row itself is wanted; the others' logits are left as they are.
  /// Empty: every row is wanted.
  std::span<const std::uint8_t> wants_row{};
  std::span<float> logits{};  // [logit_rows][vocab_size]
};

/// What a row's selections are made of: in every sparse layer each group keeps up to top_k blocks.
struct SelectionShape {
  std::vector<std::int32_t> layers{};  // those with sparse attention
  std::int32_t num_groups = 0;
  std::int32_t top_k = 0;

  std::int64_t row_size() const { return std::ssize(layers) * num_groups * top_k; }
};

class ModelRunner {
 public:
  virtual ~ModelRunner() = default;

  virtual std::int32_t vocab_size() const = 0;
  virtual std::int32_t block_tokens() const = 0;  // tokens of one KV block
  virtual std::int32_t num_blocks() const = 0;    // rows of the pool

  /// Runs the step and writes fp32 logits [batch.logit_rows.size()][vocab_size]. Called on the
  /// engine thread only. Throws Error when the step cannot be run; the slots it was to write are
  /// then undefined, everything else in the pool is as before.
  virtual void run(const Batch& batch, std::span<float> logits) = 0;

  /// Masks of banned tokens that draws may name; 0: this runner cannot draw, and nobody may call
  /// the two functions below.
  virtual std::int32_t num_token_masks() const { return 0; }
  /// `banned` as ops::mask_words() has it. Between steps.
  virtual void set_token_mask(std::int32_t /*mask*/, std::span<const std::uint32_t> /*banned*/) {}
  /// run() that chooses tokens where the logits are. Throws as run() does.
  virtual void run_and_draw(const Batch& /*batch*/, const StepOutputs& /*outputs*/) {}

  /// row_size() 0: this runner tells nothing of its attention, and no batch may ask for it.
  virtual SelectionShape selection_shape() const { return {}; }
  /// After a step: [Batch::selection_rows][layers][num_groups][top_k], logical block numbers of the
  /// sequence in ascending order, then -1; empty where memory for them was short. The same whatever
  /// else the batch held. Valid until the next step.
  virtual std::span<const std::int32_t> selections() const { return {}; }

  /// Room for that many rows of logits that fills faster than other memory, until the next call;
  /// null: nothing better than the caller's own.
  virtual float* logits_room(std::int64_t /*num_rows*/) { return nullptr; }

  /// Copies the whole row of one block (K, V, scales, index keys, drafter) to another: choices of
  /// one request share full blocks and get their own copy of a partial last one. Engine thread.
  virtual void copy_block(BlockId from, BlockId to) = 0;

  /// The most tokens that draft() proposes for a sequence; 0: this runner has no drafter, and
  /// nobody may call the four functions below. All of them on the engine thread.
  virtual std::int32_t max_draft_tokens() const { return 0; }
  virtual bool has_draft_confidence() const { return false; }
  /// After a step: which of its rows are of committed tokens, a slice for each of its sequences
  /// that may be drafted for, in its order. Before the next step, and before a block of theirs is
  /// copied or given away.
  virtual void commit_context(std::span<const ContextSlice> /*slices*/) {}
  /// Drafter::draft() and step() over the cache that run() writes. Between steps.
  virtual void draft(std::span<const DraftRequest> /*requests*/, std::int32_t /*num_tokens*/) {}
  /// `confidence`: empty, or one for each request, with has_draft_confidence() only.
  virtual void draft_step(std::int32_t /*slot*/, std::span<const TokenId> /*previous*/,
                          std::span<float> /*confidence*/) {}
  /// Drafter::logits(), where the CPU reads them: those of a slot after its draft_step().
  virtual const float* draft_logits() { return nullptr; }
  /// Whether the runner draws drafts where their logits are: draft_and_draw() then does what
  /// draft() and all draft_step()s would, as Drafter::draft_and_draw().
  virtual bool can_draw_drafts() const { return false; }
  virtual void draft_and_draw(std::span<const DraftRequest> /*requests*/,
                              std::int32_t /*num_tokens*/, const BlockDraws& /*outputs*/) {}

  /// Reads the adapter in `folder` (PEFT's format) for BatchSequence::adapter. On any thread, also
  /// while a step runs. Throws Error{kUnsupported} where this runner takes none, else what is wrong
  /// with the folder: Error{kNotFound}, Error{kIo}, Error{kInvalidCheckpoint} that lists the
  /// problems, Error{kOutOfMemory}.
  virtual std::shared_ptr<const ModelAdapter> load_adapter(const std::filesystem::path& folder,
                                                           const AdapterLimits& limits);

  /// False after a failure that no later step can survive (a lost device): the engine then ends
  /// what it has and refuses new work. Asked after a step has thrown.
  virtual bool is_healthy() const { return true; }

  /// The runner's compute threads, lent to the engine thread between steps (it samples with them);
  /// null: none. Asked after a step.
  virtual ThreadPool* compute_pool() { return nullptr; }

  /// Fingerprint of whatever changes cached values besides tokens (cache dtypes, dequantisation
  /// mode, weights): part of every prefix hash.
  virtual std::uint64_t cache_identity() const = 0;
};

}  // namespace winnow
