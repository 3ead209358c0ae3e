// A running generation as an HTTP reply: takes the engine's news from the inbox, turns them into
// text and writes them in the asked form.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "server/adapters/adapter_registry.h"
#include "server/choice_output.h"
#include "server/generation.h"
#include "server/http_message.h"
#include "server/metrics.h"
#include "server/openai/generation_fields.h"
#include "server/openai/reply_format.h"

namespace winnow::server {

/// One prompt of a request, ready for the engine.
struct PreparedPrompt {
  std::vector<TokenId> tokens;
  std::string text;    // rendered or given
  std::string echoed;  // put before the answer
};

struct GenerationPlan {
  GenerationFields fields;  // sampling complete, max_tokens resolved
  std::vector<PreparedPrompt> prompts;
  std::vector<std::vector<TokenId>> bad_words;
  std::shared_ptr<const TokenFilter> token_filter;  // start state; null: any text
  std::shared_ptr<const ServedAdapter> adapter;     // that the model's name picked; null: none
  std::string fairness_key;
  std::optional<Clock::time_point> deadline;
  std::unique_ptr<ReplyFormat> format;
  bool cached_tokens_in_usage = true;
  std::string trace_id;  // of the caller's trace, for the log
};

/// What the engine is asked for one of the plan's prompts, but for the callbacks.
GenerationRequest engine_request(const GenerationPlan& plan, std::size_t prompt);

/// What a reply needs of the server; all of it outlives the reply.
struct ReplyContext {
  const ServingModel* model = nullptr;
  ServerMetrics* metrics = nullptr;                    // may be null in tests
  std::atomic<std::int64_t>* num_in_flight = nullptr;  // counts replies alive
  const std::atomic<bool>* is_stopping = nullptr;      // abort means "the server shuts down"
};

/// Submits every prompt and returns the reply. Throws Error: what the engine refused, with
/// kQueueFull or kUnavailable when later may work; nothing stays submitted then.
std::shared_ptr<PendingReply> start_generation(GenerationPlan plan, const ReplyContext& context);

}  // namespace winnow::server
