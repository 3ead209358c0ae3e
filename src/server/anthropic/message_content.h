// Anthropic's messages as chat messages. Source: spec/serving.md 2.6.
#pragma once

#include <set>
#include <string>

#include "server/json_fields.h"

namespace winnow::server {

/// The system prompt's text, its blocks joined by blank lines; empty for none. Blocks that start
/// with "x-anthropic-billing-header:" are left out: a coding agent puts one first with a hash that
/// differs in each request, and no prefix of its conversations would ever be found in the cache.
std::string system_text(const Json* system);

/// Which tools the messages load or take away: agents declare some with `defer_loading` and bring
/// them in when a search has found them.
struct ToolChanges {
  std::set<std::string> added;
  std::set<std::string> removed;

  bool offers(const std::string& name, bool is_deferred) const {
    return !removed.contains(name) && (!is_deferred || added.contains(name));
  }
};

/// Neighbours of one role are one turn. Results go into tool messages right after the calls they
/// answer, before the text beside them; every call must be answered and every result be asked for,
/// since the template links them by order alone. Throws Error naming the block.
Json chat_messages_of(const Json& messages, ToolChanges& changes);

}  // namespace winnow::server
