// The handlers of the adapter routes. Worker threads.
#pragma once

#include "server/openai/routes.h"

namespace winnow::server {

HttpReply load_adapter(const HttpRequest& request, const RouteContext& context);
HttpReply unload_adapter(const HttpRequest& request, const RouteContext& context);

}  // namespace winnow::server
