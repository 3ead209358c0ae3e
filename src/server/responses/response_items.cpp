#include "server/responses/response_items.h"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "base/error.h"
#include "server/thinking_seal.h"

namespace winnow::server {
namespace {

std::string required(Fields& fields, const char* name) {
  const std::optional<std::string> value = fields.string(name);
  if (!value) fields.fail(name, "missing");
  return *value;
}

/// Text of a string or of parts.
std::string text_of_parts(Fields& item, const char* name) {
  const Json* content = item.find(name);
  if (content == nullptr) return {};
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) {
    item.fail(name, describe(*content) + " is not a string or an array of parts");
  }
  std::string text;
  for (std::size_t i = 0; i < content->size(); ++i) {
    Fields part((*content)[i], fmt::format("{}[{}]", item.full_name(name), i));
    const std::string type = part.string("type").value_or("");
    if (type == "input_text" || type == "output_text" || type == "text" ||
        type == "reasoning_text" || type == "summary_text") {
      text += required(part, "text");
    } else if (type == "refusal") {
      text += required(part, "refusal");
    } else if (type == "input_image") {
      part.fail("type", "'input_image': this server was started without vision");
    } else {
      part.fail("type", fmt::format("'{}': this model reads text parts only", type));
    }
  }
  return text;
}

class Translator {
 public:
  explicit Translator(std::size_t num_before) : num_before_(num_before) {}

  Json run(const Json& items) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      path_ = i < num_before_ ? fmt::format("previous_response_id: item {}", i)
                              : fmt::format("input[{}]", i - num_before_);
      Fields item(items[i], path_);
      add(item);
    }
    end_assistant();
    if (!waiting_.empty()) fail_unanswered();
    return std::move(out_);
  }

 private:
  void add(Fields& item) {
    const std::string type = item.string("type").value_or("message");
    if (type == "message") return add_message(item);
    if (type == "function_call") return add_call(item);
    if (type == "function_call_output") return add_result(item);
    if (type == "reasoning") return add_reasoning(item);
    if (type == "item_reference") {
      item.fail("type", "'item_reference': send the item itself, or use previous_response_id");
    }
    item.fail("type", fmt::format("'{}' is not one of message, function_call, "
                                  "function_call_output, reasoning",
                                  type));
  }

  void add_message(Fields& item) {
    const std::string role = required(item, "role");
    std::string text = text_of_parts(item, "content");
    if (role == "assistant") {
      // A second text is a message of its own, unless it stands between calls and their results.
      if (is_open_ && !message_["content"].get_ref<const std::string&>().empty() &&
          !message_.contains("tool_calls")) {
        end_assistant();
      }
      open_assistant();
      message_["content"].get_ref<std::string&>() += text;
      return;
    }
    if (role != "user" && role != "system" && role != "developer") {
      item.fail("role", fmt::format("'{}' is not user, assistant, system or developer", role));
    }
    end_assistant();
    if (role == "user" && !waiting_.empty()) fail_unanswered();
    out_.push_back({{"role", role}, {"content", std::move(text)}});
  }

  void add_call(Fields& item) {
    const std::string id = required(item, "call_id");
    if (item.string("status") == "incomplete") {  // cut or given up: it never was a call
      unfinished_.insert(id);
      return;
    }
    const std::string name = required(item, "name");
    const std::string arguments = item.string("arguments").value_or("");
    if (!is_open_ && !waiting_.empty()) fail_unanswered();
    open_assistant();
    if (!waiting_.insert(id).second) {
      item.fail("call_id", fmt::format("'{}' is used twice", id));
    }
    message_["tool_calls"].push_back({{"id", id},
                                      {"type", "function"},
                                      {"function", {{"name", name}, {"arguments", arguments}}}});
  }

  void add_result(Fields& item) {
    const std::string id = required(item, "call_id");
    if (item.find("output") == nullptr) item.fail("output", "missing");
    if (unfinished_.erase(id) != 0) return;
    end_assistant();
    if (waiting_.erase(id) == 0) {
      item.fail("call_id", fmt::format("no function_call '{}' waits for its output", id));
    }
    out_.push_back(
        {{"role", "tool"}, {"content", text_of_parts(item, "output")}, {"tool_call_id", id}});
  }

  void add_reasoning(Fields& item) {
    std::string text = text_of_parts(item, "content");
    if (text.empty()) {
      text = open_seal(item.string("encrypted_content").value_or("")).value_or("");
    }
    if (text.empty()) text = text_of_parts(item, "summary");
    if (text.empty()) return;
    // Thinking opens a message: after text or calls it belongs to the next one.
    if (is_open_ && !message_["content"].get_ref<const std::string&>().empty()) end_assistant();
    open_assistant();
    std::string before = message_.value("reasoning_content", "");
    if (!before.empty()) before += '\n';
    message_["reasoning_content"] = before + text;
  }

  void open_assistant() {
    if (std::exchange(is_open_, true)) return;
    if (!waiting_.empty()) fail_unanswered();
    message_ = Json{{"role", "assistant"}, {"content", ""}};
  }

  void end_assistant() {
    if (std::exchange(is_open_, false)) out_.push_back(std::move(message_));
  }

  [[noreturn]] void fail_unanswered() const {
    const std::string param = path_.substr(0, path_.find(':'));
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("input: the function_call '{}' has no function_call_output", *waiting_.begin()),
        {}, param.starts_with("input") ? "input" : param);
  }

  std::size_t num_before_;
  std::string path_;
  Json out_ = Json::array();
  bool is_open_ = false;
  Json message_;                      // the assistant's, being read
  std::set<std::string> waiting_;     // calls without their output
  std::set<std::string> unfinished_;  // calls that are left out
};

}  // namespace

Json item_list(const Json& input) {
  if (input.is_string()) {
    Json part{{"type", "input_text"}, {"text", input}};
    Json message{{"type", "message"}, {"role", "user"}, {"content", Json::array()}};
    message["content"].push_back(std::move(part));
    Json list = Json::array();
    list.push_back(std::move(message));
    return list;
  }
  return input;
}

Json chat_messages_of_items(const Json& items, std::size_t num_before) {
  return Translator(num_before).run(items);
}

}  // namespace winnow::server
