// OpenAI messages as the checkpoint's template reads them. Source: spec/frontend.md 2, 6.
#pragma once

#include <string>

#include "server/json_fields.h"

namespace winnow::server {

/// Checks roles and parts and returns a list for the template: content as a string, `reasoning` as
/// reasoning_content, tool-call arguments as objects, tool results in the order of the calls.
/// The template prints a system or developer message in first place only and drops later ones in
/// silence; here further leading ones are joined to the first, and one in mid-conversation is put
/// before the text of the next user turn (or becomes a user turn of its own at the end).
Json normalize_messages(const Json& messages);

/// Checks the tools list and returns it; throws for an empty one.
const Json& check_tools(const Json& tools);

/// Fills `thinking_mode` (enabled, disabled, adaptive) from thinking_mode itself, else thinking or
/// enable_thinking, else reasoning_effort; leaves it out when none is given. `kwargs` are the
/// template's variables: the server's defaults overlaid with the request's.
void resolve_thinking_mode(Json& kwargs, const std::string& reasoning_effort);

}  // namespace winnow::server
