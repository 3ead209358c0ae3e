// How long a step takes, as bytes over bandwidth plus fixed costs: what a choice of draft lengths
// is weighed with. All of it is counted from the model or measured on this machine at start.
#pragma once

#include <cstdint>
#include <vector>

namespace winnow {

/// Seconds of a step or a draft of so many rows or sequences.
struct MeasuredTime {
  std::int32_t count = 0;
  double seconds = 0;
};

struct StepCosts {
  double bytes_per_second = 0;   // memory bandwidth that a decode step reaches
  double fixed_seconds = 0;      // of a step, whatever it holds: launches, host work
  double row_seconds = 0;        // of a row beyond its bytes: compute, sampling
  double dense_bytes = 0;        // read once a step: attention, shared experts, LM head
  double expert_bytes = 0;       // of one routed expert, summed over its layers
  std::int32_t num_experts = 0;  // of a layer; 0: no routed experts
  std::int32_t experts_per_token = 0;

  double draft_fixed_seconds = 0;  // of a drafter pass
  double draft_slot_seconds = 0;   // of each slot of the longest block: slots follow one another
  double draft_row_seconds = 0;    // of a drafted token
  double drafter_bytes = 0;        // read once a pass, the LM head again included

  // Of each token of a sequence's context.
  double kv_token_bytes = 0;        // read once a step by the target
  double row_kv_token_bytes = 0;    // read besides for each drafted row
  double draft_kv_token_bytes = 0;  // read by a drafter pass, of at most draft_window tokens
  std::int32_t draft_window = 0;

  /// Measured times by ascending count; where given they stand for what is counted above, contexts
  /// apart: steps by rows without drafts and with them, drafter passes without their slots by
  /// sequences.
  std::vector<MeasuredTime> step_times{}, verify_times{}, draft_times{};
  /// Of putting so many computed tokens into the drafter's context, where it keeps up with a
  /// sequence. Not given: nothing.
  std::vector<MeasuredTime> context_times{};

  /// Throws Error{kInvalidArgument} for a bandwidth that is not positive, negative or non-finite
  /// costs, more experts per token than there are, and times that fall or have no count.
  void validate() const;
};

/// E (1 - (1 - k/E)^n): distinct experts of one layer that n tokens touch when each takes k of E
/// with equal chance. Real routing is less even, so this is an upper estimate.
double expected_distinct_experts(std::int32_t num_experts, std::int32_t experts_per_token,
                                 std::int32_t num_tokens);

/// What a step holds besides the model.
struct StepLoad {
  std::int32_t num_rows = 0;  // tokens through the target
  double kv_bytes = 0;        // read by the target
  double draft_kv_bytes = 0;  // read by the drafter
  std::int32_t num_draft_rows = 0;
  std::int32_t num_drafting = 0;   // sequences with drafts
  std::int32_t longest_draft = 0;  // 0: no drafter pass
};

/// What costs have turned out to be off by.
struct StepFactors {
  double plain = 1.0;          // steps without drafts take so many times what costs say
  double verify = 1.0;         // steps with drafts, their drafts apart
  double draft = 1.0;          // drafts
  double context_seconds = 0;  // a step's part of the drafter's context takes so much more
};

/// Evaluates costs; remembers expert counts, so that many loads are cheap. One thread.
class StepClock {
 public:
  /// `costs` have passed validate().
  explicit StepClock(const StepCosts& costs) : costs_(costs) {}

  const StepCosts& costs() const { return costs_; }
  double seconds(const StepLoad& load) { return target_seconds(load) + draft_seconds(load); }
  /// Its two parts: a drafter pass, with its slots, and all else.
  double target_seconds(const StepLoad& load);
  double draft_seconds(const StepLoad& load) const;
  /// Of the drafter's context for `num_tokens` more tokens; no part of the above.
  double context_seconds(std::int32_t num_tokens) const;

  void set_factors(const StepFactors& factors) { factors_ = factors; }

 private:
  double model_seconds(const StepLoad& load);

  StepCosts costs_;
  StepFactors factors_;
  std::vector<double> expert_bytes_;  // by number of rows
};

}  // namespace winnow
