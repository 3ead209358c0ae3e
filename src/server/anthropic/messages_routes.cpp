// /v1/messages and /v1/messages/count_tokens.
#include <fmt/format.h>

#include "base/error.h"
#include "server/anthropic/messages_format.h"
#include "server/anthropic/messages_request.h"
#include "server/anthropic/routes.h"
#include "server/openai/prepare.h"

namespace winnow::server {

HttpReply create_message(const HttpRequest& request, const RouteContext& context) {
  const MessagesRequest message =
      read_messages_request(parse_body(request.body), context.policy, false);
  ChatRequest chat = read_translated_chat(message.chat, kMessagesFieldNames, context);
  // Agents ask for as many tokens as their model's limit, and want what fits.
  chat.generation.default_max_tokens = message.max_tokens;
  GenerationPlan plan = plan_chat(std::move(chat), request, context);
  const std::string& model = plan.fields.model;
  plan.format = make_messages_format(
      {.id = make_response_id("msg_", plan.fields, request),
       .model = model.empty() ? context.model.names.front() : model,
       .shows_thinking = message.shows_thinking,
       .is_cut_by_context = plan.fields.sampling.max_tokens < message.max_tokens,
       .has_context_management = message.has_context_management});
  return start_generation(std::move(plan), context.reply);
}

HttpReply count_message_tokens(const HttpRequest& request, const RouteContext& context) {
  const MessagesRequest message =
      read_messages_request(parse_body(request.body), context.policy, true);
  const ChatRequest chat = read_translated_chat(message.chat, kMessagesFieldNames, context);
  check_model_name(chat.generation.model, context.model);
  const std::size_t count = prepare_chat_prompt(chat, context.model, context.policy).tokens.size();
  return HttpResponse{
      .body = dump_json(Json{{"input_tokens", count},
                             {"context_management", {{"original_input_tokens", count}}}})};
}

}  // namespace winnow::server
