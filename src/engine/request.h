// What goes into the engine and what comes out: token ids only, no text, no JSON.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/sample/token_filter.h"
#include "engine/sampling_params.h"
#include "model/model_adapter.h"

namespace winnow {

using RequestId = std::uint64_t;
using Clock = std::chrono::steady_clock;

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0.0F;   // never NaN; -inf where the probability is 0
  std::int32_t rank = 0;  // 1 = most likely
};

/// One position's log-probabilities.
struct PositionLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top{};     // the `logprobs` most likely ones by rank, chosen or not
  std::vector<TokenLogprob> listed{};  // SamplingParams::logprob_token_ids, in that order
};

enum class FinishReason { kNone, kStop, kLength, kAbort, kError };

struct SampledToken {
  TokenId token = 0;
  std::optional<PositionLogprobs> logprobs{};
  /// Which blocks were read to predict it, as ModelRunner::selections() has a row; when asked for.
  std::vector<std::int32_t> kept_blocks{};
};

/// News of one choice. Tokens arrive in order; exactly one update per choice carries a reason other
/// than kNone, and it is the last.
struct OutputUpdate {
  std::int32_t choice = 0;
  std::vector<SampledToken> tokens{};  // new ones; a stop token is included
  FinishReason finish_reason = FinishReason::kNone;
  std::optional<TokenId> stop_token{};  // the stop_token_ids entry that ended it (none for eos)
  /// With kError. kUnavailable: the deadline passed in the queue, or the engine is broken.
  ErrorCode error_code = ErrorCode::kInternal;
  std::string error{};
  /// On the first update of choice 0, when asked for: one entry per prompt token, the first empty.
  std::vector<std::optional<PositionLogprobs>> prompt_logprobs{};
};

/// One verified block: drafts that could have been accepted, and that were.
struct DraftedStep {
  std::uint8_t num_drafts = 0, num_accepted = 0;
};

/// Times and counts of one request, complete once its last choice has finished.
struct RequestStats {
  /// first_scheduled and first_token stay at the epoch when it never came to that.
  Clock::time_point arrival, first_scheduled, first_token, finished;
  std::int32_t num_prompt_tokens = 0;
  std::int32_t num_cached_tokens = 0;      // of the prompt, not recomputed at first admission
  std::int32_t num_recomputed_tokens = 0;  // after preemption
  std::int32_t num_output_tokens = 0;      // of all choices
  std::int32_t num_preemptions = 0;
  std::vector<DraftedStep> drafted_steps;  // of all choices, in order
};

struct GenerationRequest {
  std::vector<TokenId> prompt;  // not empty
  SamplingParams sampling;
  /// How many of each choice's first tokens come with their kept_blocks.
  std::int32_t num_block_selections = 0;
  std::int32_t priority = 0;  // lower runs earlier; only with the priority policy
  /// Added to the model for this request, to its end, whatever becomes of the name meanwhile; of
  /// the engine's runner. Null: the model as it is.
  std::shared_ptr<const ModelAdapter> adapter;
  std::string adapter_name;  // for the statistics
  std::string cache_salt;    // separates the prefix cache; empty: shared
  std::string fairness_key;  // session or API key, for round-robin prefill admission
  /// Passed while queued: every choice ends with kError; while running: with kAbort.
  std::optional<Clock::time_point> deadline;
  std::shared_ptr<const TokenFilter> token_filter;  // start state, cloned per choice; may be null
  /// Called on the engine thread, must only enqueue: never blocks, never throws.
  std::function<void(OutputUpdate&&)> on_update;
  /// Called once, after the last update of the last choice.
  std::function<void(const RequestStats&)> on_done;
};

}  // namespace winnow
