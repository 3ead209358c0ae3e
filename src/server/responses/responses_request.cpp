#include "server/responses/responses_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "server/responses/response_items.h"

namespace winnow::server {
namespace {

// Members with the same meaning and name in a chat body, extras of this server among them.
constexpr std::array<const char*, 23> kShared = {"model",
                                                 "stream",
                                                 "temperature",
                                                 "top_p",
                                                 "top_k",
                                                 "min_p",
                                                 "presence_penalty",
                                                 "frequency_penalty",
                                                 "repetition_penalty",
                                                 "logit_bias",
                                                 "seed",
                                                 "stop",
                                                 "stop_token_ids",
                                                 "ignore_eos",
                                                 "min_tokens",
                                                 "user",
                                                 "priority",
                                                 "cache_salt",
                                                 "timeout_ms",
                                                 "parallel_tool_calls",
                                                 "structured_outputs",
                                                 "chat_template_kwargs",
                                                 "enable_thinking"};

Json chat_tool(Fields& tool) {
  const std::string type = tool.string("type").value_or("");
  if (type != "function") {
    tool.fail("type", fmt::format("'{}': built-in tools are not offered, only function", type));
  }
  const auto name = tool.string("name");
  if (!name || name->empty()) tool.fail("name", "missing");
  Json function{{"name", *name}};
  if (const auto description = tool.string("description")) function["description"] = *description;
  const Json* parameters = tool.object("parameters");
  function["parameters"] = parameters != nullptr ? *parameters : Json{{"type", "object"}};
  if (const auto strict = tool.boolean("strict")) function["strict"] = *strict;
  return {{"type", "function"}, {"function", std::move(function)}};
}

void read_tools(Fields& fields, ResponsesRequest& out) {
  out.echo["tools"] = Json::array();
  if (const Json* tools = fields.array("tools")) {
    for (std::size_t i = 0; i < tools->size(); ++i) {
      Fields tool((*tools)[i], fmt::format("tools[{}]", i));
      out.chat["tools"].push_back(chat_tool(tool));
    }
    out.echo["tools"] = *tools;
  }
  out.echo["tool_choice"] = "auto";
  const Json* choice = fields.find("tool_choice");
  if (choice == nullptr) return;
  out.echo["tool_choice"] = *choice;
  const bool has_tools = out.chat.contains("tools");
  if (!choice->is_object()) {
    // Clients send "auto" beside an empty list of tools.
    if (has_tools || *choice != "auto") out.chat["tool_choice"] = *choice;
    return;
  }
  Fields inner(*choice, "tool_choice");
  const std::string type = inner.string("type").value_or("");
  if (type != "function") {
    inner.fail("type",
               fmt::format("'{}' is not offered; use none, auto, required or a function", type));
  }
  const auto name = inner.string("name");
  if (!name) inner.fail("name", "missing");
  out.chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", *name}}}};
}

void read_text_format(Fields& fields, ResponsesRequest& out) {
  out.echo["text"] = Json{{"format", {{"type", "text"}}}};
  const Json* text = fields.object("text");
  if (text == nullptr) return;
  Fields inner(*text, "text");
  if (const Json* format_value = inner.object("format")) {
    Fields format(*format_value, "text.format");
    const std::string type = format.string("type").value_or("");
    if (type == "json_schema") {
      Json schema{{"name", format.string("name").value_or("output")}};
      for (const char* name : {"schema", "strict", "description"}) {
        if (const Json* value = format.find(name)) schema[name] = *value;
      }
      out.chat["response_format"] = {{"type", type}, {"json_schema", std::move(schema)}};
    } else if (type == "text" || type == "json_object") {
      out.chat["response_format"] = {{"type", type}};
    } else {
      format.fail("type", fmt::format("'{}' is not text, json_object or json_schema", type));
    }
    out.echo["text"]["format"] = *format_value;
  }
  if (const auto verbosity = inner.string("verbosity")) out.echo["text"]["verbosity"] = *verbosity;
}

void read_reasoning(Fields& fields, ResponsesRequest& out) {
  out.echo["reasoning"] = Json{{"effort", nullptr}, {"summary", nullptr}};
  const Json* value = fields.object("reasoning");
  if (value == nullptr) return;
  Fields reasoning(*value, "reasoning");
  if (const auto effort = reasoning.string("effort")) {
    out.chat["reasoning_effort"] = *effort;
    out.echo["reasoning"]["effort"] = *effort;
  }
  // The thinking itself is in the answer; nobody summarises it.
  reasoning.string("summary");
}

void read_include(Fields& fields, ResponsesRequest& out) {
  const auto top = fields.integer_in("top_logprobs", 0, INT32_MAX);
  out.echo["top_logprobs"] = top.value_or(0);
  bool wants_logprobs = top.value_or(0) > 0;
  for (const std::string& name : fields.strings("include").value_or(std::vector<std::string>{})) {
    if (name == "message.output_text.logprobs") {
      wants_logprobs = true;
    } else if (name == "reasoning.encrypted_content") {
      out.seals_reasoning = true;
    } else if (!name.ends_with("_call.results") && !name.ends_with("_call.outputs") &&
               !name.ends_with("_call.action.sources") && !name.ends_with(".image_url")) {
      // Those are of built-in tools, which are not called here.
      fields.fail("include", fmt::format("'{}' is not known", name));
    }
  }
  if (!wants_logprobs) return;
  out.chat["logprobs"] = true;
  out.chat["top_logprobs"] = top.value_or(0);
}

void read_storage(Fields& fields, ResponsesRequest& out) {
  out.is_stored = fields.boolean("store").value_or(true);
  out.is_background = fields.boolean("background").value_or(false);
  if (out.is_background && !out.is_stored) fields.fail("background", "needs store: true");
  if (out.is_background && out.chat.value("stream", Json()) == true) {
    fields.fail("background", "not together with stream: true");
  }
  out.echo["background"] = out.is_background;
  out.echo["store"] = out.is_stored;
  const std::string truncation = fields.string("truncation").value_or("disabled");
  if (truncation != "auto" && truncation != "disabled") {
    fields.fail("truncation", fmt::format("'{}' is not auto or disabled", truncation));
  }
  out.may_truncate = truncation == "auto";
  out.echo["truncation"] = truncation;
  const Json* metadata = fields.object("metadata");
  out.echo["metadata"] = metadata != nullptr ? *metadata : Json::object();
  for (const char* name : {"user", "safety_identifier", "prompt_cache_key"}) {
    const auto value = fields.string(name);
    out.echo[name] = value ? Json(*value) : Json();
  }
}

void refuse_unserved(Fields& fields) {
  if (fields.find("prompt") != nullptr) fields.fail("prompt", "prompt templates are not offered");
  if (fields.find("conversation") != nullptr) {
    fields.fail("conversation", "not offered; use previous_response_id");
  }
  if (fields.find("n") != nullptr) fields.fail("n", "one response is made for each request");
  if (const Json* options = fields.object("stream_options")) {
    Fields inner(*options, "stream_options");
    inner.boolean("include_obfuscation");  // none is added
  }
  for (const char* name : {"service_tier", "max_tool_calls", "prompt_cache_retention",
                           "prompt_cache_options", "context_management", "moderation"}) {
    fields.ignore(name);
  }
}

}  // namespace

ResponsesRequest read_responses_request(const Json& body, ResponseStore& store,
                                        const std::string& caller) {
  Fields fields(body);
  ResponsesRequest out;
  for (const char* name : kShared) {
    if (const Json* value = fields.find(name)) out.chat[name] = *value;
  }
  if (const auto limit = fields.integer_in("max_output_tokens", 1, INT32_MAX)) {
    out.max_output_tokens = static_cast<std::int32_t>(*limit);
  }
  const Json* input = fields.find("input");
  if (input == nullptr) fields.fail("input", "missing");
  if (!input->is_string() && !input->is_array()) {
    fields.fail("input", describe(*input) + " is not a string or an array of items");
  }
  out.input_items = item_list(*input);
  Json items = Json::array();
  if (const auto previous = fields.string("previous_response_id")) {
    const auto found = store.find(*previous, caller);
    if (!found) {
      throw Error(
          ErrorCode::kNotFound,
          fmt::format("previous_response_id: there is no response '{}'", previous->substr(0, 128)),
          {}, "previous_response_id");
    }
    if (found->turn == nullptr) fields.fail("previous_response_id", "it has not completed");
    out.before = found->turn;
    items = found->turn->items();
  }
  out.echo["previous_response_id"] = body.value("previous_response_id", Json());
  const std::size_t num_before = items.size();
  for (const Json& item : out.input_items) items.push_back(item);
  if (items.empty()) fields.fail("input", "the list is empty");

  Json& messages = out.chat["messages"];
  messages = Json::array();
  const auto instructions = fields.string("instructions");
  if (instructions && !instructions->empty()) {
    messages.push_back({{"role", "developer"}, {"content", *instructions}});
  }
  out.echo["instructions"] = instructions ? Json(*instructions) : Json();
  for (Json& message : chat_messages_of_items(items, num_before)) {
    messages.push_back(std::move(message));
  }
  read_tools(fields, out);
  read_text_format(fields, out);
  read_reasoning(fields, out);
  read_include(fields, out);
  read_storage(fields, out);
  refuse_unserved(fields);
  out.echo["max_output_tokens"] = out.max_output_tokens ? Json(*out.max_output_tokens) : Json();
  out.echo["parallel_tool_calls"] = out.chat.value("parallel_tool_calls", Json(true));
  warn_unknown_fields(fields, "/v1/responses");
  return out;
}

bool drop_oldest_turns(ChatRequest& chat, const std::function<bool(const ChatRequest&)>& fits) {
  const Json all = std::move(chat.messages);
  std::size_t num_leading = 0;
  const auto is_instruction = [](const Json& message) {
    return message["role"] == "system" || message["role"] == "developer";
  };
  while (num_leading < all.size() && is_instruction(all[num_leading])) ++num_leading;
  std::vector<std::size_t> starts;  // of the user's turns: where a conversation may begin
  for (std::size_t i = num_leading; i < all.size(); ++i) {
    if (all[i]["role"] == "user") starts.push_back(i);
  }
  const auto keep_from = [&](std::size_t start) {
    chat.messages = Json::array();
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (i < num_leading || i >= start) chat.messages.push_back(all[i]);
    }
  };
  const auto first_that_fits =
      std::partition_point(starts.begin(), starts.end(), [&](std::size_t start) {
        keep_from(start);
        return !fits(chat);
      });
  if (first_that_fits == starts.end()) return false;
  keep_from(*first_that_fits);
  return true;
}

}  // namespace winnow::server
