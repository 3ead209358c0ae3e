#include "server/openai/translated_chat.h"

#include "base/error.h"
#include "server/openai/prepare.h"

namespace winnow::server {

ChatRequest read_translated_chat(const Json& chat_body, std::span<const FieldName> names,
                                 const RouteContext& context) {
  try {
    return read_chat_request(chat_body, context.policy, context.model.defaults);
  } catch (const Error& error) {
    for (const FieldName& name : names) {
      if (!error.param().starts_with(name.chat)) continue;
      const std::string_view rest = std::string_view(error.param()).substr(name.chat.size());
      if (!rest.empty() && rest.front() != '.' && rest.front() != '[') continue;
      std::string message = error.what();
      if (message.starts_with(name.chat)) message.replace(0, name.chat.size(), name.own);
      throw Error(error.code(), message, error.hint(), std::string(name.own) + std::string(rest));
    }
    throw;
  }
}

GenerationPlan plan_chat(ChatRequest&& chat, const HttpRequest& request,
                         const RouteContext& context) {
  check_model_name(chat.generation.model, context.model);
  GenerationPlan plan;
  plan.prompts.push_back(prepare_chat_prompt(chat, context.model, context.policy));
  plan.fields = std::move(chat.generation);
  complete_plan(plan, context.model, context.policy, request);
  return plan;
}

}  // namespace winnow::server
