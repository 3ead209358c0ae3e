// Items of /v1/responses as chat messages. Source: spec/serving-fields.md 2.7.
#pragma once

#include <string>

#include "server/json_fields.h"

namespace winnow::server {

/// `input` as a list of items: a string is one message of the user.
Json item_list(const Json& input);

/// Neighbouring items of the assistant (reasoning, message, calls) are one message. Every call must
/// be answered before the conversation goes on, since the template links results to calls by order
/// alone. `num_before`: how many of the items were stored, so that errors count the request's own.
/// Throws Error naming the item.
Json chat_messages_of_items(const Json& items, std::size_t num_before);

}  // namespace winnow::server
