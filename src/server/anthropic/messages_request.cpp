#include "server/anthropic/messages_request.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "server/anthropic/message_content.h"

namespace winnow::server {
namespace {

// Members with the same meaning and name in a chat body, extras of this server among them.
constexpr std::array<const char*, 11> kShared = {"model",
                                                 "stream",
                                                 "temperature",
                                                 "top_p",
                                                 "top_k",
                                                 "cache_salt",
                                                 "priority",
                                                 "timeout_ms",
                                                 "seed",
                                                 "chat_template_kwargs",
                                                 "kv_transfer_params"};

/// One tool in the chat form. Types of the hosted API stand for schemas that its models know.
Json chat_tool(Fields& tool) {
  const std::string type = tool.string("type").value_or("custom");
  if (type != "custom") {
    tool.fail("type", fmt::format("'{}': built-in tools are not offered; give tools with name, "
                                  "description and input_schema",
                                  type));
  }
  Json function;
  const auto name = tool.string("name");
  if (!name || name->empty()) tool.fail("name", "missing");
  function["name"] = *name;
  if (const auto description = tool.string("description")) function["description"] = *description;
  const Json* schema = tool.object("input_schema");
  if (schema == nullptr) tool.fail("input_schema", "missing");
  function["parameters"] = *schema;
  if (!schema->contains("type")) function["parameters"]["type"] = "object";
  if (const auto strict = tool.boolean("strict")) function["strict"] = *strict;
  return {{"type", "function"}, {"function", std::move(function)}};
}

void read_tools(Fields& fields, const ToolChanges& changes, Json& chat) {
  const Json* tools = fields.array("tools");
  if (tools == nullptr || tools->empty()) return;  // agents send an empty list for none
  for (std::size_t i = 0; i < tools->size(); ++i) {
    Fields tool((*tools)[i], fmt::format("tools[{}]", i));
    Json one = chat_tool(tool);
    const bool is_deferred = tool.boolean("defer_loading").value_or(false);
    if (changes.offers(one["function"]["name"], is_deferred)) {
      chat["tools"].push_back(std::move(one));
    }
  }
}

void read_tool_choice(Fields& fields, Json& chat) {
  const Json* value = fields.object("tool_choice");
  if (value == nullptr) return;
  Fields choice(*value, "tool_choice");
  const std::string type = choice.string("type").value_or("");
  if (type != "none" && !chat.contains("tools")) fields.fail("tool_choice", "needs tools");
  if (type == "tool") {
    const auto name = choice.string("name");
    if (!name) choice.fail("name", "missing");
    const Json& tools = chat["tools"];
    const bool is_known = std::any_of(tools.begin(), tools.end(), [&name](const Json& tool) {
      return tool["function"]["name"] == *name;
    });
    if (!is_known) choice.fail("name", fmt::format("'{}' is not among the tools", *name));
    chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", *name}}}};
  } else if (type == "any") {
    chat["tool_choice"] = "required";
  } else if (type == "auto" || type == "none") {
    chat["tool_choice"] = type;
  } else {
    choice.fail("type", fmt::format("'{}' is not one of auto, any, tool, none", type));
  }
  if (choice.boolean("disable_parallel_tool_use").value_or(false)) {
    chat["parallel_tool_calls"] = false;
  }
}

/// Whether `kwargs` say something about thinking.
bool decides_thinking(const Json& kwargs) {
  return kwargs.contains("thinking_mode") || kwargs.contains("thinking") ||
         kwargs.contains("enable_thinking");
}

void read_thinking(Fields& fields, const RequestPolicy& policy, MessagesRequest& out) {
  const Json* value = fields.object("thinking");
  if (value == nullptr) {
    // This API thinks when asked to, whatever the template's own default is.
    const Json* kwargs = fields.object("chat_template_kwargs");
    const bool is_decided = decides_thinking(policy.default_chat_template_kwargs) ||
                            (kwargs != nullptr && decides_thinking(*kwargs));
    if (!is_decided) out.chat["thinking"] = "disabled";
    return;
  }
  Fields thinking(*value, "thinking");
  const std::string type = thinking.string("type").value_or("");
  if (type != "enabled" && type != "disabled" && type != "adaptive") {
    thinking.fail("type", fmt::format("'{}' is not enabled, disabled or adaptive", type));
  }
  const auto budget = thinking.integer_in("budget_tokens", 1, INT32_MAX);
  if (budget && out.max_tokens > 0 && *budget >= out.max_tokens) {
    thinking.fail("budget_tokens",
                  fmt::format("{} is not below max_tokens {}", *budget, out.max_tokens));
  }
  const std::string display = thinking.string("display").value_or("summarized");
  if (display != "summarized" && display != "updates" && display != "omitted") {
    thinking.fail("display", fmt::format("'{}' is not summarized, updates or omitted", display));
  }
  out.shows_thinking = display != "omitted";
  out.chat["thinking"] = type;
}

void read_output_config(Fields& fields, Json& chat) {
  const Json* format = fields.object("output_format");  // its name before output_config
  if (const Json* value = fields.object("output_config")) {
    Fields config(*value, "output_config");
    if (const auto effort = config.string("effort")) chat["reasoning_effort"] = *effort;
    if (const Json* own = config.object("format")) format = own;
  }
  if (format == nullptr) return;
  Fields inner(*format, "output_config.format");
  const std::string type = inner.string("type").value_or("");
  if (type != "json_schema") inner.fail("type", fmt::format("'{}' is not json_schema", type));
  const Json* schema = inner.object("schema");
  if (schema == nullptr) inner.fail("schema", "missing");
  chat["response_format"] = {{"type", "json_schema"},
                             {"json_schema", {{"name", "output"}, {"schema", *schema}}}};
}

void read_sampling(Fields& fields, MessagesRequest& out) {
  const auto max_tokens = fields.integer_in("max_tokens", 1, INT32_MAX);
  if (!max_tokens) fields.fail("max_tokens", "missing");
  out.max_tokens = static_cast<std::int32_t>(*max_tokens);
  if (const auto stop = fields.strings("stop_sequences"); stop && !stop->empty()) {
    out.chat["stop"] = *stop;
  }
  if (const Json* metadata = fields.object("metadata")) {
    Fields inner(*metadata, "metadata");
    if (const auto user = inner.string("user_id")) out.chat["user"] = *user;
  }
}

void refuse_unserved(Fields& fields) {
  for (const char* name : {"mcp_servers", "container"}) {
    const Json* value = fields.find(name);
    if (value != nullptr && !value->empty()) fields.fail(name, "not offered");
  }
  for (const char* name :
       {"cache_control", "service_tier", "inference_geo", "speed", "betas", "diagnostics"}) {
    fields.ignore(name);
  }
}

}  // namespace

MessagesRequest read_messages_request(const Json& body, const RequestPolicy& policy,
                                      bool is_count) {
  Fields fields(body);
  MessagesRequest out;
  Json& chat = out.chat;
  const auto model = fields.string("model");
  if (!model || model->empty()) fields.fail("model", "missing");
  for (const char* name : kShared) {
    if (const Json* value = fields.find(name)) chat[name] = *value;
  }
  const Json* messages = fields.array("messages");
  if (messages == nullptr) fields.fail("messages", "missing");
  if (messages->empty()) fields.fail("messages", "the array is empty");
  chat["messages"] = Json::array();
  if (std::string system = system_text(fields.find("system")); !system.empty()) {
    chat["messages"].push_back({{"role", "system"}, {"content", std::move(system)}});
  }
  ToolChanges changes;
  for (Json& message : chat_messages_of(*messages, changes)) {
    chat["messages"].push_back(std::move(message));
  }
  // The reply to an assistant's last message is its continuation.
  if (chat["messages"].empty()) fields.fail("messages", "there is no text in them");
  if (chat["messages"].back()["role"] == "assistant") chat["continue_final_message"] = true;

  if (!is_count) {
    read_sampling(fields, out);
  } else {
    chat.erase("stream");
    for (const char* name : {"max_tokens", "stop_sequences", "metadata", "stream"}) {
      fields.ignore(name);
    }
  }
  read_thinking(fields, policy, out);
  read_tools(fields, changes, chat);
  read_tool_choice(fields, chat);
  read_output_config(fields, chat);
  out.has_context_management = fields.object("context_management") != nullptr;
  refuse_unserved(fields);
  warn_unknown_fields(fields, "/v1/messages");
  return out;
}

}  // namespace winnow::server
