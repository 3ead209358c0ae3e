// The handlers of /v1/responses. Worker threads; throw Error for what is refused.
#pragma once

#include "server/openai/routes.h"

namespace winnow::server {

HttpReply create_response(const HttpRequest& request, const RouteContext& context);

/// GET, DELETE {id}, GET {id}/input_items, POST {id}/cancel; `rest` is what follows the route.
HttpReply stored_response(const HttpRequest& request, const std::string& rest,
                          const RouteContext& context);

}  // namespace winnow::server
