// tools, tool_choice and parallel_tool_calls. Source: spec/frontend.md 4.5.
#pragma once

#include "server/openai/chat_request.h"

namespace winnow::server {

/// Reads what the reply may call: whose calls are parsed, and the grammar of a reply that must call
/// (tool_choice required or named) or that calls a tool whose `strict` is true. A grammar that the
/// request asks for by other fields is then of the answer that calls nothing. Throws Error naming
/// the field.
void read_tool_choice(Fields& fields, const RequestPolicy& policy, ChatRequest& out);

}  // namespace winnow::server
