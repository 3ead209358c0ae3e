// Between two steps: asks the runner's drafter for the tokens that the scheduler left room for, and
// tells it afterwards which rows of the step became output. Source: spec/speculative.md 3.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/draft_planner.h"
#include "engine/engine.h"
#include "engine/sample/candidates.h"
#include "engine/scheduler.h"
#include "model/batch.h"

namespace winnow {

/// Engine thread. A drafter that throws costs speed and no output: it is not asked again.
class DraftProposer {
 public:
  /// `planner` outlives this.
  DraftProposer(const SpeculationOptions& options, ModelRunner& runner, DraftPlanner& planner)
      : options_(options), runner_(runner), planner_(planner) {}

  /// Fills Sequence::draft of every chunk: at most Chunk::num_drafts tokens, none where there is no
  /// room, no usable logits or too little confidence. The drafter always runs whole blocks, so that
  /// what a sequence is proposed depends on nobody else.
  void propose(std::span<const Chunk> chunks);

  /// After verification of the step that `batch` was: the rows of known and of accepted tokens.
  void commit_context(const Batch& batch, std::span<const Chunk> chunks);

 private:
  void draft(std::span<const Chunk> chunks);
  bool fill_weights(std::span<const float> logits, const SampleRules& rules, DraftWeights& out);
  bool can_draw_on_runner() const;
  void draw_on_runner();
  bool propose_slot(Sequence& sequence, std::span<const float> logits);

  SpeculationOptions options_;
  ModelRunner& runner_;
  DraftPlanner& planner_;
  std::vector<const Chunk*> drafting_;
  std::vector<DraftRequest> requests_;  // of drafting_
  std::vector<TokenId> previous_;       // of drafting_
  std::vector<std::uint8_t> is_open_;   // of drafting_: every slot so far was usable
  std::vector<float> confidence_;       // of drafting_, for one slot or for all
  std::vector<Candidate> top_;          // of one slot, with draft_top_k
  std::vector<TokenId> top_ids_;
  std::vector<float> top_logits_;
  std::vector<ops::Draw> draws_;  // [slots][drafting_], where the runner draws
  std::vector<ops::Drawn> drawn_;
  std::vector<ContextSlice> slices_;
};

}  // namespace winnow
