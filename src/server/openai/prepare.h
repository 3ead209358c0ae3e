// From a typed request to what the engine takes: template, tokens, limits.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/adapters/adapter_registry.h"
#include "server/http_message.h"
#include "server/openai/chat_request.h"
#include "server/openai/completion_request.h"
#include "server/openai/generation_reply.h"

namespace winnow::server {

/// Renders and encodes; also for /tokenize.
PreparedPrompt prepare_chat_prompt(const ChatRequest& request, const ServingModel& model,
                                   const RequestPolicy& policy);
PreparedPrompt prepare_raw_prompt(const RawPrompt& prompt, const GenerationFields& fields,
                                  const ServingModel& model);

/// Finds the adapter, applies truncation, resolves max_tokens and bad words, checks lengths and
/// ranges. Throws Error with the field as param; "maximum context length" is part of the text
/// clients match on.
void complete_plan(GenerationPlan& plan, const ServingModel& model, const RequestPolicy& policy,
                   const HttpRequest& http);

/// "chatcmpl-" and the request's own id, the X-Request-Id header's, or 32 random hex digits.
std::string make_response_id(const char* prefix, const GenerationFields& fields,
                             const HttpRequest& http);

/// Printable ASCII of at most 128 characters; anything else is dropped.
std::string clean_request_id(std::string_view text);

/// The adapter that `name` picks; null: the model itself, also where the name is empty. Throws
/// Error{kNotFound} for a name that is not served.
std::shared_ptr<const ServedAdapter> find_model(const std::string& name, const ServingModel& model);
/// Throws as find_model().
void check_model_name(const std::string& name, const ServingModel& model);

ReplyHeader make_header(const GenerationFields& fields, const ServingModel& model,
                        const RequestPolicy& policy, std::string id);

}  // namespace winnow::server
