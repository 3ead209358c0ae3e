// How many tokens to draft for each sequence of a batch, so that the expected tokens per second are
// highest. Rests on nothing but acceptance in past steps and the cost model: a length that depended
// on this step's drafted tokens would bias the output (spec/speculative.md 4.8). What is chosen
// never changes the output of greedy and coupled verification; in the other methods it changes
// which numbers a seeded run meets, not the distribution.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/speculate/step_cost.h"

namespace winnow {

inline constexpr std::int32_t kMaxDraftLength = 16;

/// Decayed counts of tested and of accepted drafts by slot, of one sequence or of the engine.
class AcceptanceHistory {
 public:
  /// A step's evidence is worth `decay` times as much after each further one; in (0, 1].
  explicit AcceptanceHistory(double decay) : decay_(decay) {}

  /// A verified block: `num_accepted` drafts were accepted and, if `is_rejected`, the next refused.
  /// Slots beyond were not tested. A block without tests (nothing drafted) leaves all as it was.
  /// `cut_rate`: the slot after the drafts was given up by its confidence, of which so much could
  /// be expected; it counts as a test passed to that share, so that what is never tested is not
  /// believed to be as good as what is.
  void observe(std::int32_t num_accepted, bool is_rejected,
               std::optional<double> cut_rate = std::nullopt);

  /// Share of slot i's tests that it passed, with `weight` tests of rate `prior` added.
  double rate(std::int32_t slot, double prior, double weight) const;

 private:
  struct Count {
    double tested = 0, accepted = 0;
  };
  double decay_;
  std::array<Count, kMaxDraftLength> counts_{};
};

/// survival[i]: probability that more than i drafts are accepted; never rises with i.
using Survival = std::array<double, kMaxDraftLength>;

/// Half of the evidence is from the last 69 and from the last 693 steps with drafts.
inline constexpr double kSequenceDecay = 0.99;
inline constexpr double kEngineDecay = 0.999;

struct DraftLengthOptions {
  std::int32_t max_length = 7;
  double first_rate = 0.7;  // believed of the first slot before anything was measured
  double engine_weight =
      4.0;  // tests that first_rate, or the slot before, counts for in the engine's
  double sequence_weight = 8.0;   // tests that the engine's rate counts for in a sequence's
  double hysteresis = 0.03;       // lengths stay while the best would gain less than this share
  double exploration = 0.007;     // share of plain decoding's time for trying what seems not to pay
  std::int32_t probe_length = 3;  // drafts of such a try

  /// Throws Error{kInvalidArgument}.
  void validate() const;
};

Survival forecast_survival(const AcceptanceHistory& sequence, const AcceptanceHistory& engine,
                           const DraftLengthOptions& options);

/// As good as what was seen leaves room for: what nobody has tested is accepted.
Survival hoped_survival(const AcceptanceHistory& sequence, const AcceptanceHistory& engine,
                        const DraftLengthOptions& options);

/// How well a sequence's drafts may turn out at best: few tests leave much hope.
double forecast_hope(const AcceptanceHistory& sequence, const AcceptanceHistory& engine,
                     const DraftLengthOptions& options);

/// One decoding sequence as the choice sees it.
struct DraftForecast {
  Survival survival{};
  Survival hoped{};            // hoped_survival(): trials are made where that would pay
  std::int32_t limit = 0;      // most drafts now: max_tokens, context, drafter; 0: cannot draft
  std::int32_t previous = -1;  // length of its last step, 0 after a probe; -1: none
  double hope = 0;          // forecast_hope(): whom to try first where nobody's drafts seem to pay
  double kv_bytes = 0;      // of its context, read once a step by the target
  double row_kv_bytes = 0;  // read besides for each drafted row
  double draft_kv_bytes = 0;  // read by the drafter when it drafts
};

/// What else the step holds.
struct OtherWork {
  std::int32_t num_prompt_rows = 0;
  std::int32_t num_sequences =
      0;  // that decode a token each and cannot draft: they wait for drafts
};

struct DraftPlan {
  std::vector<std::int32_t> lengths;  // by request
  double expected_tokens = 0;         // of the step, of all sequences that decode
  double seconds = 0;
  /// A drafted row pays for itself in this step if it is accepted at least so often.
  double min_survival = 0;
  double exploration_seconds = 0;  // saved up, to be handed to the next choice
  std::int32_t probed = -1;        // the request that drafts to be measured, not to gain; -1: none
  bool is_trial = false;           // all that draft do so to be measured
  double seconds_per_token = 0;    // of plain decoding, without prompts
  double plain_seconds = 0;        // of this step without drafts
  double decode_seconds = 0;       // of its decodes alone: what shares of time are of
  double prompt_seconds = 0;       // the rest of plain_seconds
  double gain_seconds = 0;         // what its drafts save, a probe's and a trial's apart

  bool is_to_learn() const { return is_trial || probed >= 0; }
  bool is_to_learn(std::size_t request) const {
    return is_trial ? lengths[request] > 0 : static_cast<std::int32_t>(request) == probed;
  }
  /// What a probe or a trial brought is saved again: only losses count against exploration.
  void settle_probe(std::int32_t num_accepted) {
    exploration_seconds += num_accepted * seconds_per_token;
  }
  /// Its step has taken so long in place of `seconds`.
  void settle_time(double seen) {
    exploration_seconds -= std::clamp(seen - seconds, -plain_seconds, kMaxSurprise * plain_seconds);
  }

 private:
  static constexpr double kMaxSurprise = 2.0;  // beyond, something else has delayed the step
};

/// A pure function of its arguments, dressed as a class for its work space. One thread.
class DraftLengthChooser {
 public:
  /// Throws Error{kInvalidArgument}.
  DraftLengthChooser(const StepCosts& costs, const DraftLengthOptions& options);

  /// Except for probes and trials the plan's expected rate, of all sequences and beside the time
  /// that prompts take, is not below that without drafts. Probes and trials lose at most
  /// `exploration` of plain decoding's time, and one trial more: `exploration_seconds` is the last
  /// plan's, settled. The best plan is exact where all rows cost alike: then the m most likely
  /// drafts are the best m.
  void choose(std::span<const DraftForecast> requests, const OtherWork& others,
              double exploration_seconds, DraftPlan& plan);

  /// Seconds that following such sequences is expected to save in each step, against getting the
  /// tokens one by one: what the best drafts do, less what the drafter's context of all tokens
  /// takes. Below 0 where it does not pay. No probes.
  double gain(std::span<const DraftForecast> requests);
  /// The same if all goes as hoped.
  double hoped_gain(std::span<const DraftForecast> requests);

  StepClock& clock() { return clock_; }
  const StepCosts& costs() const { return clock_.costs(); }

 private:
  struct Slot {
    double survival = 0;
    std::int32_t request = 0, index = 0;
  };
  void evaluate_plain(std::span<const DraftForecast> requests, DraftPlan& plan);
  void find_best(std::span<const DraftForecast> requests, DraftPlan& plan);
  void keep_previous(std::span<const DraftForecast> requests, DraftPlan& plan);
  bool is_worth_beginning(std::span<const DraftForecast> requests, const DraftPlan& plan) const;
  void explore(std::span<const DraftForecast> requests, DraftPlan& plan);
  bool try_all(std::span<const DraftForecast> requests, DraftPlan& plan);
  void find_hoped(std::span<const DraftForecast> requests, DraftPlan& plan);
  void probe(std::span<const DraftForecast> requests, DraftPlan& plan);
  void evaluate(std::span<const DraftForecast> requests, DraftPlan& plan);
  StepLoad load_of(std::span<const DraftForecast> requests,
                   std::span<const std::int32_t> lengths) const;

  StepClock clock_;
  DraftLengthOptions options_;
  double plain_tokens(std::span<const DraftForecast> requests) const;
  double gain_of(std::span<const DraftForecast> requests, const DraftPlan& plan) const;
  double followed_gain_of(std::span<const DraftForecast> requests, const DraftPlan& plan) const;

  OtherWork others_;
  std::vector<Slot> slots_;
  std::vector<std::int32_t> lengths_;
  std::vector<DraftForecast> hoped_;  // the requests as they are hoped to be
  DraftPlan gain_plan_, hoped_plan_;
};

/// Steps of `first` to `last` sequences draft `num_tokens` each.
struct BatchDraftLength {
  std::int32_t first = 0, last = 0, num_tokens = 0;
};

/// Drafts per sequence of a step of so many sequences; `otherwise` where no entry covers it.
std::int32_t draft_length_for_batch(std::span<const BatchDraftLength> lengths,
                                    std::int32_t otherwise, std::int32_t num_sequences);

}  // namespace winnow
