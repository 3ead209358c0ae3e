// How many tokens each decoding sequence drafts: a fixed number, one by the size of the batch, or
// what speculate/draft_length.h expects most of, given what verification and the clock have said
// so far. Source: spec/speculative.md 4.8.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/context_budget.h"
#include "engine/engine.h"
#include "engine/sequence.h"
#include "engine/speculate/confidence.h"
#include "engine/speculate/draft_length.h"
#include "engine/speculate/step_correction.h"

namespace winnow {

struct Chunk;

/// Engine thread.
class DraftPlanner {
 public:
  explicit DraftPlanner(const SpeculationOptions& options);

  /// Of one sequence in a step; 0 when off or given up.
  std::int32_t max_drafts() const { return has_failed_ || is_paused_ ? 0 : options_.num_drafts; }
  /// Between requests: drafts or does not until told otherwise.
  void pause(bool is_paused) { is_paused_ = is_paused; }
  /// The drafter has failed: nothing is drafted any more.
  void give_up() { has_failed_ = true; }

  /// Adaptive lengths need costs; without them they are the fixed number.
  bool wants_costs() const { return options_.is_adaptive && !chooser_; }
  /// As measured; those of the options are taken as they are.
  void set_costs(const StepCosts& costs);

  /// Whether the drafter is to keep up with the sequence, one of `num_sequences` at work, decided
  /// when its first tokens have been computed. Where drafting is not expected to pay for keeping up
  /// only one now and then is followed, as a small share of the time allows, to see whether it
  /// does, or all where a trial might show so much that drafting all pays; and nobody any more once
  /// that is spent.
  bool follows(Sequence& sequence, std::int32_t num_sequences);

  struct Candidate {  // a followed sequence
    Sequence* sequence = nullptr;
    std::int32_t limit = 0;  // above 0
  };
  /// The lengths to draft, one per candidate, none above its limit. `num_other_rows`: of prompts,
  /// as far as the step's are known; `num_sequences`: that decode in it.
  std::span<const std::int32_t> choose(std::span<const Candidate> candidates,
                                       std::int32_t num_sequences, std::int32_t num_other_rows);

  /// Whether the drafter's confidence is wanted.
  bool uses_confidence() const { return chooser_.has_value(); }
  /// The confidence of the sequence's next slot, before its draft is drawn. False: it is not worth
  /// a row, and the block ends before it.
  bool keeps_slot(Sequence& sequence, float confidence);

  /// After verification of the step that was chosen for.
  void observe(std::span<const Chunk> chunks);
  /// How long that step took.
  void observe_step(const StepTimes& seen, std::span<const Chunk> chunks);

 private:
  DraftForecast forecast_of(const Candidate& candidate) const;
  double draft_kv_bytes(double context) const;
  void settle_context(std::span<const Candidate> candidates, std::int32_t num_others);
  bool is_worth_following(const Sequence& sequence, std::int32_t num_sequences);

  SpeculationOptions options_;
  DraftLengthOptions length_options_;
  bool has_failed_ = false;
  bool is_paused_ = false;
  std::optional<DraftLengthChooser> chooser_;
  bool is_corrected_ = false;  // costs were measured: later steps correct them
  ContextBudget context_budget_;
  std::int32_t num_followed_ = 0;            // of the last step
  AcceptanceHistory history_{kEngineDecay};  // of all sequences
  ConfidenceCalibration calibration_;
  DraftPlan plan_;
  bool is_planned_ = false;               // plan_ is of the step that is observed next
  std::int32_t num_in_a_row_ = 0;         // steps that drafted, but for probes
  std::vector<DraftForecast> forecasts_;  // of the candidates
  StepCorrection correction_;
};

}  // namespace winnow
