// The handlers of Anthropic's routes. Worker threads; throw Error for what is refused.
#pragma once

#include "server/openai/routes.h"

namespace winnow::server {

HttpReply create_message(const HttpRequest& request, const RouteContext& context);
HttpReply count_message_tokens(const HttpRequest& request, const RouteContext& context);

}  // namespace winnow::server
