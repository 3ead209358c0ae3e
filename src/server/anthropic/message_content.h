// Anthropic's messages as chat messages. Source: spec/serving.md 2.6.
#pragma once

#include <string>

#include "server/json_fields.h"

namespace winnow::server {

/// The system prompt's text, its blocks joined by blank lines; empty for none. Blocks that start
/// with "x-anthropic-billing-header:" are left out: a coding agent puts one first with a hash that
/// differs in each request, and no prefix of its conversations would ever be found in the cache.
std::string system_text(const Json* system);

/// Neighbours of one role are one turn. Results go into tool messages right after the calls they
/// answer, before the text beside them; every call must be answered and every result be asked for,
/// since the template links them by order alone. Throws Error naming the block.
Json chat_messages_of(const Json& messages);

}  // namespace winnow::server
