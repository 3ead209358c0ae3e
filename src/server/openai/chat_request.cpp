#include "server/openai/chat_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "base/error.h"
#include "server/openai/chat_messages.h"
#include "server/openai/structured_output.h"
#include "server/openai/tool_choice.h"

namespace winnow::server {
namespace {

constexpr std::array<std::string_view, 7> kEfforts = {"none", "minimal", "low", "medium",
                                                      "high", "xhigh",   "max"};
// Variables the server sets itself; kwargs may not replace them.
constexpr std::array<std::string_view, 5> kReserved = {"messages", "tools", "add_generation_prompt",
                                                       "continue_final_message", "documents"};

void read_logprobs(Fields& fields, const RequestPolicy& policy, SamplingParams& sampling) {
  const bool wanted = fields.boolean("logprobs").value_or(false);
  const std::int64_t top = fields.integer("top_logprobs").value_or(0);
  if (top < -1) fields.fail("top_logprobs", fmt::format("{} is below 0 (-1: all)", top));
  if (top != 0 && !wanted) fields.fail("top_logprobs", "needs logprobs: true");
  const auto too_many = [&policy](std::int64_t count) {
    return policy.max_logprobs != -1 && (count == -1 || count > policy.max_logprobs);
  };
  if (too_many(top)) {
    fields.fail("top_logprobs", fmt::format("{} is above the server's --max-logprobs {}", top,
                                            policy.max_logprobs));
  }
  if (wanted) sampling.logprobs = static_cast<std::int32_t>(std::min<std::int64_t>(top, INT32_MAX));
  if (const auto ids = fields.integers("logprob_token_ids")) {
    if (!wanted) fields.fail("logprob_token_ids", "needs logprobs: true");
    if (ids->empty()) fields.fail("logprob_token_ids", "the list is empty");
    for (const std::int64_t id : *ids) {
      if (id < 0 || id > INT32_MAX) {
        fields.fail("logprob_token_ids", fmt::format("{} is not a token id", id));
      }
      sampling.logprob_token_ids.push_back(static_cast<TokenId>(id));
    }
  }
}

void read_prompt_logprobs(Fields& fields, const RequestPolicy& policy, bool is_stream,
                          SamplingParams& sampling) {
  const auto count = fields.integer_in("prompt_logprobs", -1, INT32_MAX);
  if (!count) return;
  if (is_stream && *count != 0) {
    fields.fail("prompt_logprobs", "not together with stream: true");
  }
  if (policy.max_logprobs != -1 && (*count == -1 || *count > policy.max_logprobs)) {
    fields.fail("prompt_logprobs", fmt::format("{} is above the server's --max-logprobs {}", *count,
                                               policy.max_logprobs));
  }
  sampling.prompt_logprobs = static_cast<std::int32_t>(*count);
}

void refuse_unserved_chat(Fields& fields) {
  if (fields.find("functions") != nullptr) fields.fail("functions", "use tools");
  if (fields.find("function_call") != nullptr) fields.fail("function_call", "use tool_choice");
  if (fields.find("audio") != nullptr) fields.fail("audio", "this model writes text");
  if (fields.find("web_search_options") != nullptr)
    fields.fail("web_search_options", "not offered");
  if (const auto modalities = fields.strings("modalities")) {
    for (const std::string& modality : *modalities) {
      if (modality != "text") {
        fields.fail("modalities", fmt::format("'{}': this model writes text", modality));
      }
    }
  }
}

/// The request's own template variables.
Json own_kwargs(Fields& fields, const RequestPolicy& policy) {
  Json kwargs = Json::object();
  if (const Json* given = fields.object("chat_template_kwargs")) {
    for (const auto& [key, value] : given->items()) {
      if (std::find(kReserved.begin(), kReserved.end(), key) != kReserved.end()) {
        fields.fail("chat_template_kwargs", fmt::format("'{}' is set by the server", key));
      }
      if (key == "chat_template" && !policy.trust_request_chat_template) {
        fields.fail("chat_template_kwargs",
                    "chat_template needs a server started with --trust-request-chat-template");
      }
      kwargs[key] = value;
    }
  }
  // Clients of hosted APIs send these at the top level; kwargs win.
  for (const char* name : {"thinking", "enable_thinking"}) {
    const Json* value = fields.find(name);
    if (value != nullptr && !kwargs.contains("thinking_mode") && !kwargs.contains(name)) {
      kwargs[name] = *value;
    }
  }
  return kwargs;
}

void set_reasoning(Fields& fields, const RequestPolicy& policy, ChatRequest& out) {
  GenerationFields& generation = out.generation;
  generation.include_reasoning = fields.boolean("include_reasoning").value_or(true);
  if (!policy.split_reasoning) {
    if (!generation.include_reasoning) {
      fields.fail("include_reasoning", "needs a server started with a --reasoning-parser");
    }
    return;
  }
  using State = ReasoningParser::State;
  const bool opens_thinking =
      out.add_generation_prompt && out.template_variables.value("thinking_mode", "") == "enabled";
  // A continued message stands after its closer: the template always prints one before content.
  generation.reasoning = out.continue_final_message ? State::kContent
                         : opens_thinking           ? State::kReasoning
                                                    : State::kOpen;
}

}  // namespace

void read_chat_prompt(Fields& fields, const RequestPolicy& policy, ChatRequest& out) {
  const Json* messages = fields.find("messages");
  if (messages == nullptr) fields.fail("messages", "missing");
  out.messages = normalize_messages(*messages);
  if (const Json* tools = fields.array("tools")) out.tools = check_tools(*tools);

  if (fields.find("chat_template") != nullptr) {
    fields.fail("chat_template", policy.trust_request_chat_template
                                     ? "templates in requests are not offered; use --chat-template"
                                     : "needs a server started with --trust-request-chat-template");
  }
  const std::string effort = fields.string("reasoning_effort").value_or("");
  if (!effort.empty() && std::find(kEfforts.begin(), kEfforts.end(), effort) == kEfforts.end()) {
    fields.fail("reasoning_effort", fmt::format("'{}' is not one of none, minimal, low, medium, "
                                                "high, xhigh, max",
                                                effort));
  }
  // Thinking is resolved on each side first: any word of the request about it beats the server's
  // default, whichever of its names either uses.
  Json own = own_kwargs(fields, policy);
  resolve_thinking_mode(own, effort);
  out.template_variables = policy.default_chat_template_kwargs;
  resolve_thinking_mode(out.template_variables, {});
  for (const auto& [key, value] : own.items()) out.template_variables[key] = value;
  if (!effort.empty()) out.template_variables["reasoning_effort"] = effort;
  if (const Json* documents = fields.array("documents")) {
    out.template_variables["documents"] = *documents;
  }

  const auto add_prompt = fields.boolean("add_generation_prompt");
  out.continue_final_message = fields.boolean("continue_final_message").value_or(false);
  if (out.continue_final_message && add_prompt.value_or(false)) {
    fields.fail("continue_final_message", "not together with add_generation_prompt: true");
  }
  out.add_generation_prompt = add_prompt.value_or(!out.continue_final_message);
  const std::string last_role = out.messages.back()["role"].get<std::string>();
  if (out.continue_final_message && last_role != "assistant") {
    fields.fail("continue_final_message", "the last message is not the assistant's");
  }
  out.generation.add_special_tokens = fields.boolean("add_special_tokens").value_or(false);
}

ChatRequest read_chat_request(const Json& body, const RequestPolicy& policy,
                              const GenerationDefaults& defaults) {
  Fields fields(body);
  ChatRequest out;
  out.generation = read_generation_fields(fields, policy, defaults);
  read_chat_prompt(fields, policy, out);
  out.generation.grammar = read_structured_output(fields);
  read_tool_choice(fields, policy, out);
  set_reasoning(fields, policy, out);
  read_logprobs(fields, policy, out.generation.sampling);
  read_prompt_logprobs(fields, policy, out.generation.stream, out.generation.sampling);
  refuse_unserved_chat(fields);
  out.echo = fields.boolean("echo").value_or(false);
  if (out.generation.max_tokens == 0) {
    fields.fail(
        fields.find("max_completion_tokens") != nullptr ? "max_completion_tokens" : "max_tokens",
        "0 is below 1");
  }
  warn_unknown_fields(fields, "/v1/chat/completions");
  return out;
}

Json template_variables(const ChatRequest& request) {
  Json variables = request.template_variables;
  variables["messages"] = request.messages;
  if (!request.tools.is_null()) variables["tools"] = request.tools;
  variables["add_generation_prompt"] = request.add_generation_prompt;
  return variables;
}

}  // namespace winnow::server
