// POST /v1/responses: the body as a chat body. Source: spec/serving.md 2.6, serving-fields.md 2.7.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/openai/translated_chat.h"
#include "server/responses/response_store.h"

namespace winnow::server {

struct ResponsesRequest {
  Json chat;         // for read_translated_chat()
  Json input_items;  // the request's own
  Json echo;         // members that the response repeats
  std::shared_ptr<const ConversationTurn> before;
  std::optional<std::int32_t> max_output_tokens;
  bool is_stored = true;
  bool is_background = false;
  bool may_truncate = false;
  bool seals_reasoning = false;  // include: reasoning.encrypted_content
};

inline constexpr std::array<FieldName, 8> kResponsesFieldNames = {
    FieldName{"messages", "input"},
    {"max_completion_tokens", "max_output_tokens"},
    {"response_format.json_schema", "text.format"},
    {"response_format", "text.format"},
    {"tools[*].function.parameters", "tools[*].parameters"},
    {"tool_choice.function.name", "tool_choice.name"},
    {"reasoning_effort", "reasoning.effort"},
    {"logprobs", "include"}};

/// Throws Error naming the field; kNotFound for a previous response that `caller` does not have.
ResponsesRequest read_responses_request(const Json& body, ResponseStore& store,
                                        const std::string& caller);

/// Takes the oldest turns out of a chat until `fits` says yes; system messages and the last turn
/// stay. False: not even that fits.
bool drop_oldest_turns(ChatRequest& chat, const std::function<bool(const ChatRequest&)>& fits);

}  // namespace winnow::server
