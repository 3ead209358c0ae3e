// POST /v1/messages: the body as a chat body. Source: spec/serving.md 2.6, serving-fields.md 2.8.
#pragma once

#include <array>
#include <cstdint>

#include "server/openai/translated_chat.h"

namespace winnow::server {

struct MessagesRequest {
  Json chat;  // for read_translated_chat()
  std::int32_t max_tokens = 0;
  bool shows_thinking = true;  // false: display "omitted"
  bool has_context_management = false;
};

inline constexpr std::array<FieldName, 7> kMessagesFieldNames = {
    FieldName{"stop", "stop_sequences"},
    {"continue_final_message", "messages"},
    {"response_format.json_schema.schema", "output_config.format.schema"},
    {"response_format", "output_config.format"},
    {"tools[*].function.parameters", "tools[*].input_schema"},
    {"reasoning_effort", "output_config.effort"},
    {"parallel_tool_calls", "tool_choice.disable_parallel_tool_use"}};

/// Throws Error naming the field. With `is_count` for count_tokens, which has no limits.
MessagesRequest read_messages_request(const Json& body, const RequestPolicy& policy, bool is_count);

}  // namespace winnow::server
