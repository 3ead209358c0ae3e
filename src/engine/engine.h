// The engine's outside: hand in requests from any thread, get updates through their callbacks.
// Inside, one engine thread owns scheduler, KV pool and model runner and runs the step loop.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "model/model_runner.h"
#include "engine/request.h"

namespace winnow {

enum class SchedulingPolicy { kFcfs, kPriority };

struct EngineOptions {
  std::int32_t max_model_len = 0;              // prompt + output of one sequence
  std::int32_t max_num_seqs = 256;             // running sequences
  std::int32_t max_num_batched_tokens = 2048;  // tokens of one step
  std::int32_t max_num_queued_requests = 2048;
  std::int64_t max_num_queued_tokens = 0;         // 0: no limit
  std::int32_t long_prefill_token_threshold = 0;  // largest chunk of one prompt; 0: the budget
  bool enable_prefix_caching = true;
  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  bool fair_admission = true;  // round-robin over fairness_key inside one priority
  std::int64_t seed = 0;
  std::vector<TokenId> stop_token_ids;  // eos and the model's other stop ids
};

/// Why submit() refused; the queue is bounded so that load answers 503 instead of growing.
enum class SubmitRefusal { kNone, kQueueFullRequests, kQueueFullTokens, kDraining, kBroken };

/// Gauges and counters, read at any time from any thread.
struct EngineStats {
  std::int64_t num_running = 0, num_waiting = 0;
  std::int64_t num_blocks = 0, num_free_blocks = 0;  // free includes cached blocks nobody uses
  std::int64_t prompt_tokens = 0, cached_tokens = 0, recomputed_tokens = 0, generation_tokens = 0;
  std::int64_t prefix_queries = 0, prefix_hits = 0;  // tokens, once per request at first admission
  std::int64_t num_preemptions = 0, num_steps = 0;
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
  /// `runner` and `observer` (may be null) outlive the engine. Starts the engine thread.
  Engine(const EngineOptions& options, ModelRunner& runner, StepObserver* observer);
  /// Aborts what is left and joins.
  ~Engine();

  struct Submitted {
    SubmitRefusal refusal = SubmitRefusal::kNone;
    RequestId id = 0;  // valid when not refused
  };
  /// Throws Error{kInvalidArgument} for what can never run: an empty prompt, ids outside the
  /// vocabulary, prompt + max_tokens beyond max_model_len or beyond the pool.
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

  EngineStats stats() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace winnow
