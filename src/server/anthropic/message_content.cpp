#include "server/anthropic/message_content.h"

#include <fmt/format.h>

#include <map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "server/thinking_seal.h"

namespace winnow::server {
namespace {

constexpr std::string_view kBillingHeader = "x-anthropic-billing-header:";

void append(std::string& text, std::string_view more, std::string_view separator) {
  if (!text.empty() && !more.empty()) text += separator;
  text += more;
}

[[noreturn]] void refuse_block(Fields& block, const std::string& type, const char* accepted) {
  if (type == "image") block.fail("type", "'image': this server was started without vision");
  if (type == "document" || type == "search_result" || type == "container_upload") {
    block.fail("type", fmt::format("'{}': this model reads text blocks only", type));
  }
  block.fail("type", fmt::format("'{}' is not one of {}", type, accepted));
}

std::string block_type(Fields& block) {
  const std::optional<std::string> type = block.string("type");
  if (!type) block.fail("type", "missing");
  return *type;
}

std::string required(Fields& fields, const char* name) {
  const std::optional<std::string> value = fields.string(name);
  if (!value) fields.fail(name, "missing");
  return *value;
}

/// tool_addition and tool_removal.
void note_tool_change(Fields& block, bool is_addition, ToolChanges& changes) {
  const Json* value = block.object("tool");
  if (value == nullptr) block.fail("tool", "missing");
  Fields tool(*value, block.full_name("tool"));
  const std::string type = block_type(tool);
  if (type != "tool_reference") {
    tool.fail("type", fmt::format("'{}' is not tool_reference: declare it among the tools", type));
  }
  const std::string name = required(tool, "name");
  (is_addition ? changes.added : changes.removed).insert(name);
  if (is_addition) changes.removed.erase(name);
}

/// Calls `visit` with each block and its type; content that is no array is refused.
template <typename Visit>
void for_each_block(const Json& content, const std::string& path, const Visit& visit) {
  if (!content.is_array()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: {} is not a string or an array of blocks", path, describe(content)), {},
        path);
  }
  for (std::size_t i = 0; i < content.size(); ++i) {
    Fields block(content[i], fmt::format("{}[{}]", path, i));
    visit(block, block_type(block));
  }
}

/// Text of a string or of blocks.
std::string joined_text(const Json& content, const std::string& path, std::string_view separator,
                        ToolChanges& changes) {
  if (content.is_string()) return content.get<std::string>();
  std::string text;
  for_each_block(content, path, [&](Fields& block, const std::string& type) {
    if (type == "text") {
      append(text, required(block, "text"), separator);
    } else if (type == "tool_reference") {
      const std::string name = required(block, "tool_name");
      append(text, name, separator);
      changes.added.insert(name);
    } else if (type == "tool_addition" || type == "tool_removal") {
      note_tool_change(block, type == "tool_addition", changes);
    } else {
      refuse_block(block, type, "text, tool_reference");
    }
  });
  return text;
}

class Translator {
 public:
  explicit Translator(ToolChanges& changes) : changes_(changes) {}

  Json run(const Json& messages) {
    for (std::size_t i = 0; i < messages.size(); ++i) {
      Fields message(messages[i], fmt::format("messages[{}]", i));
      const std::string role = message.string("role").value_or("");
      const Json* content = message.find("content");
      const std::string path = message.full_name("content");
      if (role == "assistant") {
        end_user_turn();
        if (!is_assistant_) begin_assistant_turn(path);
        if (content != nullptr) add_assistant(*content, path);
      } else if (role == "user" || role == "ctx" || role == "msg") {
        end_assistant_turn();
        is_user_ = true;
        if (content != nullptr) add_user(*content, path);
      } else if (role == "system") {
        if (content == nullptr) continue;
        std::string text = joined_text(*content, path, "\n\n", changes_);
        if (!text.empty()) out_.push_back({{"role", "system"}, {"content", std::move(text)}});
      } else {
        message.fail("role", fmt::format("'{}' is not user, assistant or system", role));
      }
    }
    end_user_turn();
    if (is_assistant_ && !calls_.empty()) {
      fail_unanswered("a tool_use ends the messages; its tool_result is missing");
    }
    end_assistant_turn();
    return std::move(out_);
  }

 private:
  struct Result {
    std::string id;
    std::string text;
  };

  void begin_assistant_turn(const std::string& path) {
    is_assistant_ = true;
    turn_ = Json{{"role", "assistant"}, {"content", ""}};
    calls_.clear();
    calls_path_ = path;
  }

  void end_assistant_turn() {
    if (!std::exchange(is_assistant_, false)) return;
    out_.push_back(std::move(turn_));
  }

  void end_user_turn() {
    if (!std::exchange(is_user_, false)) return;
    for (const auto& [id, is_answered] : calls_) {
      if (!is_answered) {
        fail_unanswered(
            fmt::format("the tool_use '{}' has no tool_result in the user's message after it", id));
      }
    }
    calls_.clear();
    const bool has_results = !results_.empty();
    for (Result& result : results_) {
      out_.push_back({{"role", "tool"},
                      {"content", std::move(result.text)},
                      {"tool_call_id", std::move(result.id)}});
    }
    results_.clear();
    if (!text_.empty() || !has_results) {
      out_.push_back({{"role", "user"}, {"content", std::exchange(text_, {})}});
    }
  }

  [[noreturn]] void fail_unanswered(const std::string& what) const {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: {}", calls_path_, what), {},
                calls_path_);
  }

  void add_user(const Json& content, const std::string& path) {
    if (content.is_string()) return append(text_, content.get<std::string>(), "\n");
    for_each_block(content, path, [this](Fields& block, const std::string& type) {
      if (type == "text") {
        append(text_, required(block, "text"), "\n");
      } else if (type == "tool_result") {
        add_result(block);
      } else {
        refuse_block(block, type, "text, tool_result");
      }
    });
  }

  void add_result(Fields& block) {
    Result result;
    result.id = required(block, "tool_use_id");
    const auto call = calls_.find(result.id);
    if (call == calls_.end()) {
      block.fail("tool_use_id",
                 fmt::format("'{}' is no tool_use of the assistant's message before", result.id));
    }
    if (std::exchange(call->second, true)) {
      block.fail("tool_use_id", fmt::format("'{}' was answered already", result.id));
    }
    if (const Json* content = block.find("content")) {
      result.text = joined_text(*content, block.full_name("content"), "\n", changes_);
    }
    // The template has no place for the flag, and a failure may not look like a result.
    if (block.boolean("is_error").value_or(false)) result.text.insert(0, "Error: ");
    results_.push_back(std::move(result));
  }

  void add_assistant(const Json& content, const std::string& path) {
    if (content.is_string()) return add_assistant_text(content.get<std::string>());
    for_each_block(content, path, [this](Fields& block, const std::string& type) {
      if (type == "text") {
        add_assistant_text(required(block, "text"));
      } else if (type == "thinking") {
        add_thinking(block);
      } else if (type == "tool_use") {
        add_call(block);
      } else if (type != "redacted_thinking") {  // of another model: nothing to read in it
        refuse_block(block, type, "text, thinking, redacted_thinking, tool_use");
      }
    });
  }

  void add_assistant_text(const std::string& text) {
    turn_["content"].get_ref<std::string&>() += text;
  }

  void add_thinking(Fields& block) {
    std::string thinking = block.string("thinking").value_or("");
    if (thinking.empty()) {  // shown to nobody: it is in the signature
      thinking = open_seal(block.string("signature").value_or("")).value_or("");
    }
    if (thinking.empty()) return;
    std::string before = turn_.value("reasoning_content", "");
    append(before, thinking, "\n");
    turn_["reasoning_content"] = std::move(before);
  }

  void add_call(Fields& block) {
    const std::string id = required(block, "id");
    const std::string name = required(block, "name");
    const Json* input = block.object("input");
    if (!calls_.emplace(id, false).second) {
      block.fail("id", fmt::format("'{}' is used twice", id));
    }
    calls_path_ = block.full_name("id");
    turn_["tool_calls"].push_back(
        {{"id", id},
         {"type", "function"},
         {"function",
          {{"name", name}, {"arguments", input != nullptr ? *input : Json::object()}}}});
  }

  ToolChanges& changes_;
  Json out_ = Json::array();
  bool is_user_ = false;
  bool is_assistant_ = false;
  Json turn_;                          // the assistant's, being read
  std::map<std::string, bool> calls_;  // ids of its calls, and whether they were answered
  std::string calls_path_;
  std::vector<Result> results_;  // of the user's turn
  std::string text_;
};

}  // namespace

std::string system_text(const Json* system) {
  if (system == nullptr) return {};
  const auto without_header = [](std::string text) {
    if (!text.starts_with(kBillingHeader)) return text;
    const std::size_t end = text.find('\n');
    return end == std::string::npos ? std::string() : text.substr(end + 1);
  };
  if (system->is_string()) return without_header(system->get<std::string>());
  std::string text;
  for_each_block(*system, "system", [&](Fields& block, const std::string& type) {
    if (type != "text") refuse_block(block, type, "text");
    append(text, without_header(required(block, "text")), "\n\n");
  });
  return text;
}

Json chat_messages_of(const Json& messages, ToolChanges& changes) {
  return Translator(changes).run(messages);
}

}  // namespace winnow::server
