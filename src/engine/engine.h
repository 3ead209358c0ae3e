// The engine's outside: hand in requests from any thread, get updates through their callbacks.
// Inside, one engine thread owns scheduler, KV pool and model runner and runs the step loop.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "engine/speculate/draft.h"
#include "engine/speculate/draft_length.h"
#include "engine/speculate/step_cost.h"
#include "model/model_runner.h"

namespace winnow {

enum class SchedulingPolicy { kFcfs, kPriority };

/// Drafts of the runner's drafter, verified by the target.
struct SpeculationOptions {
  std::int32_t num_drafts = 0;  // of a decoding sequence per step, at most; 0: off
  AcceptMethod method = AcceptMethod::kStandard;
  bool is_greedy_draft = true;     // drafts are the drafter's highest logits, else drawn from them
  std::int32_t max_model_len = 0;  // longer sequences are not drafted for; 0: the engine's
  std::vector<BatchDraftLength> lengths_by_batch{};  // ascending; where none covers it: num_drafts
  std::int32_t draft_top_k = 0;  // drawn drafts are of so many tokens; 0: of the vocabulary
  bool is_adaptive = false;      // each step chooses lengths of up to num_drafts
  /// For is_adaptive; none: measured when the engine starts.
  std::optional<StepCosts> costs{};
  /// Not empty: acceptance by decree (speculate/synthetic.h), for benchmarks. The text is
  /// meaningless then.
  std::vector<double> synthetic_rates{};
};

struct EngineOptions {
  std::int32_t max_model_len = 0;              // prompt + output of one sequence
  std::int32_t max_num_seqs = 256;             // running sequences
  std::int32_t max_num_batched_tokens = 2048;  // tokens of one step, at least max_num_seqs
  std::int32_t max_num_queued_requests = 2048;
  std::int64_t max_num_queued_tokens = 0;         // of prompts; 0: no limit
  std::int32_t long_prefill_token_threshold = 0;  // largest chunk of one prompt; 0: the budget
  double target_itl_ms =
      0;  // steps with decodes carry fewer prompt tokens to last no longer; 0: off
  bool enable_prefix_caching = true;
  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  bool fair_admission = true;           // round-robin over fairness_key inside one priority
  std::int32_t max_logprobs = 20;       // largest SamplingParams::logprobs; -1: the vocabulary
  std::int64_t seed = 0;                // a request without a seed gets this plus its RequestId
  std::vector<TokenId> stop_token_ids;  // eos and the model's other stop ids
  std::int32_t max_adapters = 1;        // different ones in one step
  std::string prefix_cache_secret;      // key of the prefix hashes; empty: a public constant
  SpeculationOptions speculation;
};

/// Why submit() refused; the queue is bounded so that load answers 503 instead of growing.
enum class SubmitRefusal { kNone, kQueueFullRequests, kQueueFullTokens, kDraining, kBroken };

/// Requests of one adapter.
struct AdapterLoad {
  std::int64_t num_running = 0, num_waiting = 0;
};

/// Gauges and counters, read at any time from any thread; one snapshot is consistent in itself:
/// of prompt_tokens (counted at first admission) cached_tokens were found in the prefix cache and
/// the rest is computed; what preemption makes the engine compute again is recomputed_tokens.
struct EngineStats {
  std::int64_t num_running = 0, num_waiting = 0;     // sequences; each choice is one
  std::int64_t num_blocks = 0, num_free_blocks = 0;  // free includes cached blocks nobody uses
  std::int64_t prompt_tokens = 0, cached_tokens = 0, recomputed_tokens = 0, generation_tokens = 0;
  std::int64_t prefix_queries = 0, prefix_hits = 0;  // tokens, once per request at first admission
  std::int64_t num_preemptions = 0, num_steps = 0;
  std::int64_t num_failed_steps = 0;
  /// Blocks verified; tokens of them that could have been accepted, and that were.
  std::int64_t num_drafts = 0, draft_tokens = 0, accepted_tokens = 0;
  std::array<std::int64_t, kMaxDraftLength> accepted_by_position{};  // blocks that accepted more
  /// Of token filters: filled while the model worked, and what was then still missing.
  std::int64_t num_masks_ahead = 0, num_late_masks = 0;
  std::int64_t num_corrupted_requests = 0;      // ended because of NaN or infinite logits
  std::map<std::string, AdapterLoad> adapters;  // by name; of those with requests
  bool is_broken = false;
};

/// Per-step observer for metrics histograms; called on the engine thread, must be quick.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual void on_step(std::int32_t num_tokens, std::int32_t num_sequences, double seconds) = 0;
};

class Engine {
 public:
  /// `runner` and `observer` (may be null) outlive the engine. Starts the engine thread. Throws
  /// Error{kInvalidArgument} for options that cannot work.
  Engine(const EngineOptions& options, ModelRunner& runner, StepObserver* observer);
  /// Aborts what is left and joins.
  ~Engine();

  struct Submitted {
    SubmitRefusal refusal = SubmitRefusal::kNone;
    RequestId id = 0;  // valid when not refused
  };
  /// Throws Error{kInvalidArgument} for what can never run: an empty prompt, ids outside the
  /// vocabulary, prompt + max_tokens beyond max_model_len or beyond the pool, sampling parameters
  /// out of range. max_tokens 0 computes the prompt and ends with kLength (prompt logprobs).
  [[nodiscard]] Submitted submit(GenerationRequest request);

  /// Ends the request (or one choice of it, at its next step boundary) with kAbort; unknown or
  /// finished ids are ignored. `stop` reports kStop instead: a stop string matched.
  void abort(RequestId id);
  void stop_choice(RequestId id, std::int32_t choice);

  /// New requests are refused from here on; returns once all have ended or `timeout_seconds`
  /// passed, after which the rest ends with kAbort.
  void drain(double timeout_seconds);

  /// Forgets cached prefixes; false while blocks are in use and not `force`.
  [[nodiscard]] bool reset_prefix_cache(bool force);

  /// Stops or resumes drafting, for comparisons, and forgets cached prefixes; false, and nothing
  /// done, while there are requests.
  [[nodiscard]] bool set_drafting(bool is_on);

  EngineStats stats() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace winnow
