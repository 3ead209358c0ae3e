// Between two steps: asks the runner's drafter for the tokens that the scheduler left room for, and
// tells it afterwards which rows of the step became output. Source: spec/speculative.md 3.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/scheduler.h"
#include "model/batch.h"

namespace winnow {

/// Engine thread. A drafter that throws costs speed and no output: it is not asked again.
class DraftProposer {
 public:
  DraftProposer(const SpeculationOptions& options, ModelRunner& runner)
      : options_(options), runner_(runner) {}

  /// Of one sequence in this step; 0 when off or given up.
  std::int32_t max_drafts() const { return has_failed_ ? 0 : options_.num_drafts; }

  /// Fills Sequence::draft of every chunk: at most Chunk::num_drafts tokens, none where there is no
  /// room or no usable logits. The block is always drafted whole, so that what a sequence is
  /// proposed depends on nobody else.
  void propose(std::span<const Chunk> chunks);

  /// After verification of the step that `batch` was: the rows of known and of accepted tokens.
  void commit_context(const Batch& batch, std::span<const Chunk> chunks);

 private:
  void draft(std::span<const Chunk> chunks);
  bool propose_slot(Sequence& sequence, std::span<const float> logits);

  SpeculationOptions options_;
  ModelRunner& runner_;
  bool has_failed_ = false;
  std::vector<const Chunk*> drafting_;
  std::vector<DraftRequest> requests_;  // of drafting_
  std::vector<TokenId> previous_;       // of drafting_
  std::vector<std::uint8_t> is_open_;   // of drafting_: every slot so far was usable
  std::vector<ContextSlice> slices_;
};

}  // namespace winnow
