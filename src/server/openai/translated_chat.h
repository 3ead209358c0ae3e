// The one way from a chat request to the engine, and the door for other APIs: they write their
// request as a chat body, so that tools, formats and thinking mean the same everywhere.
#pragma once

#include <span>
#include <string_view>

#include "server/openai/chat_request.h"
#include "server/openai/routes.h"

namespace winnow::server {

/// A chat field and what the other API calls it; the first that fits counts. `[*]` in both is one
/// index.
struct FieldName {
  std::string_view chat;
  std::string_view own;
};

/// read_chat_request() of a body that was made from another one: errors name its own fields.
ChatRequest read_translated_chat(const Json& chat_body, std::span<const FieldName> names,
                                 const RouteContext& context);

/// Everything but the form of the reply. Checks the model's name, renders, encodes, sets limits.
GenerationPlan plan_chat(ChatRequest&& chat, const HttpRequest& request,
                         const RouteContext& context);

}  // namespace winnow::server
