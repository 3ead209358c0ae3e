#include "server/openai/translated_chat.h"

#include <optional>
#include <string>

#include "base/error.h"
#include "server/openai/prepare.h"

namespace winnow::server {
namespace {

/// A field's own name and the beginning of a chat parameter that it stands for.
struct Renamed {
  std::string chat;
  std::string own;
};

std::optional<Renamed> rename(const FieldName& name, std::string_view param) {
  Renamed out{.chat = std::string(name.chat), .own = std::string(name.own)};
  if (const std::size_t star = out.chat.find('*'); star != std::string::npos) {
    if (!param.starts_with(name.chat.substr(0, star))) return std::nullopt;
    const std::string_view index = param.substr(star, param.find(']', star) - star);
    out.chat.replace(star, 1, index);
    out.own.replace(out.own.find('*'), 1, index);
  }
  if (!param.starts_with(out.chat)) return std::nullopt;
  const std::string_view rest = param.substr(out.chat.size());
  if (!rest.empty() && rest.front() != '.' && rest.front() != '[') return std::nullopt;
  return out;
}

}  // namespace

ChatRequest read_translated_chat(const Json& chat_body, std::span<const FieldName> names,
                                 const RouteContext& context) {
  try {
    return read_chat_request(chat_body, context.policy, context.model.defaults);
  } catch (const Error& error) {
    for (const FieldName& name : names) {
      const std::optional<Renamed> renamed = rename(name, error.param());
      if (!renamed) continue;
      std::string message = error.what();
      if (message.starts_with(renamed->chat)) {
        message.replace(0, renamed->chat.size(), renamed->own);
      }
      throw Error(error.code(), message, error.hint(),
                  renamed->own + error.param().substr(renamed->chat.size()));
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
