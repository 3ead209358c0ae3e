// The handlers of the OpenAI routes. Worker threads; throw Error for what is refused.
#pragma once

#include "server/http_message.h"
#include "server/openai/generation_reply.h"

namespace winnow::server {

class AdapterLoads;
class BackgroundReplies;
class ResponseStore;

struct RouteContext {
  const ServingModel& model;
  const RequestPolicy& policy;
  const ReplyContext& reply;
  ResponseStore& responses;
  BackgroundReplies& background;
  AdapterLoads& adapter_loads;
};

HttpReply chat_completions(const HttpRequest& request, const RouteContext& context);
HttpReply completions(const HttpRequest& request, const RouteContext& context);
HttpReply tokenize(const HttpRequest& request, const RouteContext& context);
HttpReply detokenize(const HttpRequest& request, const RouteContext& context);
HttpReply list_models(const RouteContext& context);
HttpReply get_model(const std::string& name, const RouteContext& context);

}  // namespace winnow::server
