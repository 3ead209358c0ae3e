#include "load/stream_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

namespace winnow::load {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxEventBytes = 16U << 20;
constexpr std::size_t kMaxErrorBytes = 300;

const json* member(const json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::int64_t count_of(const json& object, const char* name) {
  const json* value = member(object, name);
  if (value == nullptr || !value->is_number_unsigned()) return 0;
  const auto count = value->get<std::uint64_t>();
  return count > INT64_MAX / 2 ? 0 : static_cast<std::int64_t>(count);
}

std::string shortened(std::string_view text) {
  if (text.size() <= kMaxErrorBytes) return std::string(text);
  return std::string(text.substr(0, kMaxErrorBytes)) + "…";
}

/// The three forms in use: {"error": {"message": …}}, {"error": "…"}, {"message": …}.
std::string message_of(const json& body) {
  const json* error = member(body, "error");
  const json& holder = error == nullptr ? body : *error;
  if (holder.is_string()) return holder.get<std::string>();
  const json* message = member(holder, "message");
  return message != nullptr && message->is_string() ? message->get<std::string>() : std::string();
}

/// Text of a choice, whatever part of the answer it belongs to.
void add_text(const json& choice, std::string& out) {
  const json* delta = member(choice, "delta");
  const json& holder = delta == nullptr ? choice : *delta;
  const json* reasoning = member(holder, "reasoning_content");
  if (reasoning == nullptr) reasoning = member(holder, "reasoning");  // some send both
  for (const json* part : {reasoning, member(holder, "content"), member(holder, "text")}) {
    if (part != nullptr && part->is_string()) out += part->get_ref<const std::string&>();
  }
  const json* calls = member(holder, "tool_calls");
  if (calls == nullptr || !calls->is_array()) return;
  for (const json& call : *calls) {
    const json* function = member(call, "function");
    if (function == nullptr) continue;
    for (const char* name : {"name", "arguments"}) {
      const json* part = member(*function, name);
      if (part != nullptr && part->is_string()) out += part->get_ref<const std::string&>();
    }
  }
}

}  // namespace

bool EventReader::add(std::string_view bytes) {
  while (!bytes.empty()) {
    if (std::exchange(was_return_, false) && bytes.front() == '\n') {
      bytes.remove_prefix(1);
      continue;
    }
    const std::size_t end = bytes.find_first_of("\r\n");
    line_ += bytes.substr(0, end);
    if (line_.size() + data_.size() > kMaxEventBytes) return false;
    if (end == std::string_view::npos) return true;
    was_return_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    end_line();
  }
  return true;
}

void EventReader::end_line() {
  if (line_.empty()) {
    if (std::exchange(has_data_, false)) on_data_(data_);
    data_.clear();
    return;
  }
  std::string_view line = line_;
  if (line.starts_with("data:")) {
    line.remove_prefix(5);
    if (line.starts_with(' ')) line.remove_prefix(1);
    if (std::exchange(has_data_, true)) data_ += '\n';
    data_ += line;
  }
  line_.clear();
}

void ReplyReader::fail(std::string_view what) {
  if (record_.error.empty()) record_.error = shortened(what);
}

void ReplyReader::add_event(std::string_view data, double now) {
  if (is_done_) return;
  if (data == "[DONE]") {
    is_done_ = true;
    return;
  }
  const json event = json::parse(data, nullptr, false);
  if (!event.is_object()) return fail(fmt::format("an event is no JSON object: {}", data));
  if (member(event, "error") != nullptr) {
    const std::string message = message_of(event);
    return fail(message.empty() ? "the stream ended with an error" : message);
  }
  if (const json* usage = member(event, "usage"); usage != nullptr && usage->is_object()) {
    record_.has_usage = true;
    record_.prompt_tokens = count_of(*usage, "prompt_tokens");
    record_.output_tokens = count_of(*usage, "completion_tokens");
  }
  const json* choices = member(event, "choices");
  if (choices == nullptr || !choices->is_array() || choices->empty()) return;
  record_.latency = now;
  const std::size_t size = record_.text.size();
  for (const json& choice : *choices) {
    add_text(choice, record_.text);
    is_finished_ = is_finished_ || member(choice, "finish_reason") != nullptr;
  }
  if (record_.text.size() > size) record_.pieces.push_back({now, record_.text.size() - size});
}

void ReplyReader::finish() {
  if (!is_done_ && !is_finished_) fail("the stream was cut before its end");
  if (record_.latency == 0) fail("the stream held no answer");
  record_.success = record_.error.empty();
}

std::string error_text(int status, std::string_view body) {
  const std::string message = message_of(json::parse(body, nullptr, false));
  return fmt::format("HTTP {}: {}", status, shortened(message.empty() ? body : message));
}

}  // namespace winnow::load
