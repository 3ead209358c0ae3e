#include "server/openai/chat_messages.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "base/error.h"
#include "server/json_guard.h"

namespace winnow::server {
namespace {

constexpr std::int64_t kMaxArgumentComparisons = 1'000'000;  // of one call; a body holds thousands
constexpr const char* kNoVision = "this server was started without vision";

bool is_instruction(const std::string& role) { return role == "system" || role == "developer"; }

std::string text_of_part(Fields& part) {
  const std::string type = part.string("type").value_or("");
  if (type == "text" || type == "input_text" || type == "output_text") {
    const std::optional<std::string> text = part.string("text");
    if (!text) part.fail("text", "missing");
    return *text;
  }
  if (type == "refusal") return part.string("refusal").value_or("");
  if (type == "image_url" || type == "input_image" || type == "image" || type == "video_url" ||
      type == "video") {
    part.fail("type", fmt::format("'{}': {}", type, kNoVision));
  }
  part.fail("type", fmt::format("'{}' is not one of text, image_url, video_url", type));
}

/// A string, or parts joined as the template would print them: one after another.
std::string text_of_content(Fields& message) {
  const Json* content = message.find("content");
  if (content == nullptr) return {};
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) {
    message.fail("content", describe(*content) + " is not a string or an array of parts");
  }
  std::string text;
  for (std::size_t i = 0; i < content->size(); ++i) {
    const Json& item = (*content)[i];
    if (item.is_string()) {
      text += item.get<std::string>();
      continue;
    }
    Fields part(item, fmt::format("{}[{}]", message.full_name("content"), i));
    text += text_of_part(part);
  }
  return text;
}

/// The OpenAI form carries arguments as JSON text; the template walks an object.
Json arguments_object(Fields& function) {
  const Json* arguments = function.find("arguments");
  if (arguments == nullptr) return Json::object();
  if (arguments->is_object()) return *arguments;
  if (!arguments->is_string()) {
    function.fail("arguments", describe(*arguments) + " is not a string of JSON");
  }
  const std::string text = arguments->get<std::string>();
  if (text.empty()) return Json::object();
  check_json_text(text, kMaxJsonDepth, kMaxArgumentComparisons);
  Json parsed = Json::parse(text, nullptr, false);
  if (!parsed.is_object()) function.fail("arguments", "the string is not a JSON object");
  return parsed;
}

Json tool_calls(const Json& calls, const std::string& path) {
  Json out = Json::array();
  for (std::size_t i = 0; i < calls.size(); ++i) {
    Fields call(calls[i], fmt::format("{}[{}]", path, i));
    const Json* function_value = call.object("function");
    if (function_value == nullptr) call.fail("function", "missing");
    Fields function(*function_value, call.full_name("function"));
    const std::optional<std::string> name = function.string("name");
    if (!name || name->empty()) function.fail("name", "missing");
    Json one;
    one["id"] = call.string("id").value_or("");
    one["type"] = "function";
    one["function"]["name"] = *name;
    one["function"]["arguments"] = arguments_object(function);
    out.push_back(std::move(one));
  }
  return out;
}

Json assistant_message(Fields& message) {
  Json out;
  out["role"] = "assistant";
  out["content"] = text_of_content(message);
  auto reasoning = message.string("reasoning_content");
  if (!reasoning) reasoning = message.string("reasoning");
  if (reasoning) out["reasoning_content"] = *reasoning;
  if (const Json* calls = message.array("tool_calls"); calls != nullptr && !calls->empty()) {
    out["tool_calls"] = tool_calls(*calls, message.full_name("tool_calls"));
  }
  return out;
}

/// Sorts the run of tool results that ends the list into the order of the calls they answer: the
/// template prints no ids, so order is the only link.
void sort_tool_results(Json& messages) {
  std::size_t first = messages.size();
  while (first > 0 && messages[first - 1]["role"] == "tool") --first;
  if (first == messages.size() || first == 0) return;
  const Json& calls = messages[first - 1]["tool_calls"];
  std::map<std::string_view, std::size_t> ranks;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    ranks.emplace(calls[i]["id"].get_ref<const std::string&>(), i);
  }
  const auto rank = [&](const Json& result) {
    const auto id = result.find("tool_call_id");
    if (id == result.end() || id->get_ref<const std::string&>().empty()) return calls.size();
    const auto found = ranks.find(id->get_ref<const std::string&>());
    return found == ranks.end() ? calls.size() : found->second;
  };
  std::stable_sort(messages.begin() + static_cast<std::ptrdiff_t>(first), messages.end(),
                   [&rank](const Json& a, const Json& b) { return rank(a) < rank(b); });
}

class Normalizer {
 public:
  Json run(const Json& messages) {
    if (!messages.is_array()) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("messages: {} is not an array", describe(messages)), {}, "messages");
    }
    if (messages.empty()) {
      throw Error(ErrorCode::kInvalidArgument, "messages: the array is empty", {}, "messages");
    }
    for (std::size_t i = 0; i < messages.size(); ++i) {
      Fields message(messages[i], fmt::format("messages[{}]", i));
      add(message, i);
    }
    sort_tool_results(out_);
    if (!pending_instruction_.empty()) push_user(std::exchange(pending_instruction_, {}));
    return std::move(out_);
  }

 private:
  void add(Fields& message, std::size_t index) {
    const std::string role = message.string("role").value_or("");
    if (role != "tool") sort_tool_results(out_);
    if (role == "root") {
      if (index != 0) message.fail("role", "'root' is only allowed for the first message");
      out_.push_back({{"role", role}, {"content", text_of_content(message)}});
    } else if (is_instruction(role)) {
      add_instruction(role, text_of_content(message));
    } else if (role == "user") {
      std::string text = text_of_content(message);
      if (!pending_instruction_.empty()) {
        text = std::exchange(pending_instruction_, {}) + "\n\n" + text;
      }
      push_user(text);
    } else if (role == "assistant") {
      out_.push_back(assistant_message(message));
      can_answer_tools_ = out_.back().contains("tool_calls");
      has_turns_ = true;
    } else if (role == "tool") {
      add_tool_result(message);
    } else {
      message.fail(
          "role", fmt::format("'{}' is not one of system, developer, user, assistant, tool", role));
    }
  }

  void add_instruction(const std::string& role, const std::string& text) {
    if (has_turns_) {
      if (!pending_instruction_.empty()) pending_instruction_ += "\n\n";
      pending_instruction_ += text;
    } else if (!out_.empty() && out_.back()["role"] != "root") {
      out_.back()["content"].get_ref<std::string&>() += "\n\n" + text;
    } else {
      out_.push_back({{"role", role}, {"content", text}});
    }
  }

  void push_user(const std::string& text) {
    out_.push_back({{"role", "user"}, {"content", text}});
    has_turns_ = true;
    can_answer_tools_ = false;
  }

  void add_tool_result(Fields& message) {
    if (!can_answer_tools_) {
      message.fail("role", "a tool message must follow an assistant message with tool_calls");
    }
    Json result;
    result["role"] = "tool";
    result["content"] = text_of_content(message);
    result["tool_call_id"] = message.string("tool_call_id").value_or("");
    out_.push_back(std::move(result));
  }

  Json out_ = Json::array();
  std::string pending_instruction_;
  bool has_turns_ = false;  // anything but leading instructions
  bool can_answer_tools_ = false;
};

}  // namespace

Json normalize_messages(const Json& messages) { return Normalizer().run(messages); }

const Json& check_tools(const Json& tools) {
  if (tools.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "tools: the array is empty; leave it out", {},
                "tools");
  }
  for (std::size_t i = 0; i < tools.size(); ++i) {
    Fields tool(tools[i], fmt::format("tools[{}]", i));
    const std::string type = tool.string("type").value_or("function");
    if (type != "function") tool.fail("type", fmt::format("'{}' is not function", type));
    const Json* function_value = tool.object("function");
    if (function_value == nullptr) tool.fail("function", "missing");
    Fields function(*function_value, tool.full_name("function"));
    const std::optional<std::string> name = function.string("name");
    if (!name || name->empty()) function.fail("name", "missing");
    function.string("description");
    function.object("parameters");
    function.boolean("strict");
  }
  return tools;
}

void resolve_thinking_mode(Json& kwargs, const std::string& reasoning_effort) {
  const auto mode_of = [](const Json& value) -> std::string {
    if (value.is_boolean()) return value.get<bool>() ? "enabled" : "disabled";
    if (value.is_string()) return value.get<std::string>();
    if (value.is_object() && value.contains("type") && value["type"].is_string()) {
      return value["type"].get<std::string>();
    }
    return {};
  };
  std::string mode;
  std::string name;
  for (const char* candidate : {"thinking_mode", "thinking", "enable_thinking"}) {
    const auto it = kwargs.find(candidate);
    if (it == kwargs.end() || it->is_null()) continue;
    name = fmt::format("chat_template_kwargs.{}", candidate);
    mode = mode_of(*it);
    break;
  }
  if (name.empty() && !reasoning_effort.empty()) {
    mode = reasoning_effort == "none" ? "disabled" : "enabled";
  } else if (name.empty()) {
    return;
  }
  if (mode != "enabled" && mode != "disabled" && mode != "adaptive") {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: '{}' is not enabled, disabled or adaptive (or a boolean)", name, mode), {},
        name);
  }
  kwargs["thinking_mode"] = mode;
}

}  // namespace winnow::server
