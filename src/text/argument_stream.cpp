#include "text/argument_stream.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "text/minimax_markers.h"
#include "text/namespace_mark.h"

namespace winnow {
namespace {

using Json = nlohmann::ordered_json;

std::string dump(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// The characters of a JSON string, without its quotes.
std::string escaped(const std::string& text) {
  const std::string quoted = dump(Json(text));
  return quoted.substr(1, quoted.size() - 2);
}

/// Bytes at the end that may be the beginning of a character.
std::size_t unfinished_bytes(std::string_view text) {
  for (std::size_t n = 1; n <= std::min<std::size_t>(3, text.size()); ++n) {
    const auto byte = static_cast<unsigned char>(text[text.size() - n]);
    if ((byte & 0xC0U) == 0x80U) continue;
    const std::size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return length > n ? n : 0;
  }
  return 0;
}

}  // namespace

ArgumentStream::ArgumentStream(const Json& schema) : typing_(schema) {
  frames_.push_back({.key = {}, .schema = &schema, .mode = Mode::kObject});
}

std::string ArgumentStream::add(std::string_view text) {
  std::string out;
  if (!std::exchange(is_begun_, true)) out = "{";
  if (is_stopped_) return out;
  pending_ += text;
  while (!is_stopped_ && take_tag(out)) {
  }
  return out;
}

bool ArgumentStream::take_tag(std::string& out) {
  const std::optional<NamespaceMark> mark = find_namespace_mark(pending_, 0);
  if (!mark) {
    const std::size_t held = held_suffix(pending_, kToolNamespace);
    take_text(std::string_view(pending_).substr(0, pending_.size() - held), out);
    pending_.erase(0, pending_.size() - held);
    return false;
  }
  take_text(std::string_view(pending_).substr(0, mark->begin), out);
  const std::size_t end = pending_.find('>', mark->tag);
  if (end == std::string::npos) {
    pending_.erase(0, mark->begin);
    return false;
  }
  const std::string tag = pending_.substr(mark->tag, end - mark->tag);
  pending_.erase(0, end + 1);
  if (!tag.starts_with('<') || tag.size() < 2) {
    is_stopped_ = true;
  } else if (tag[1] == '/') {
    close(std::string_view(tag).substr(2), out);
  } else {
    open(tag.substr(1), out);
  }
  return true;
}

void ArgumentStream::take_text(std::string_view text, std::string& out) {
  if (text.empty()) return;
  Frame& frame = frames_.back();
  if (frame.mode == Mode::kObject || frame.mode == Mode::kArray) {
    // Blanks set elements apart; other text becomes a member of its own, at the very end.
    if (text.find_first_not_of(" \t\r\n") != std::string_view::npos) is_stopped_ = true;
    return;
  }
  frame.text += text;
  if (frame.mode == Mode::kUndecided && typing_.is_text(frame.schema, frame.text)) {
    begin_value(out);
    out += '"';
    frame.mode = Mode::kText;
  }
  if (frame.mode == Mode::kText) write_text(frame, out);
}

void ArgumentStream::write_text(Frame& frame, std::string& out) {
  const std::size_t size = frame.text.size() - unfinished_bytes(frame.text);
  out += escaped(frame.text.substr(0, size));
  frame.text.erase(0, size);
}

/// What stands before the value of the innermost frame.
void ArgumentStream::begin_value(std::string& out) {
  Frame& parent = frames_[frames_.size() - 2];
  if (parent.num_members++ > 0) out += ',';
  if (parent.mode == Mode::kObject) out += dump(Json(frames_.back().key)) + ":";
}

void ArgumentStream::open(std::string key, std::string& out) {
  if (frames_.size() > kMaxTaggedDepth) {
    is_stopped_ = true;
    return;
  }
  Frame& parent = frames_.back();
  if (parent.mode == Mode::kUndecided) {
    const bool is_blank = parent.text.find_first_not_of(" \t\r\n") == std::string::npos;
    const ArgumentTyping::Container container = typing_.container(parent.schema);
    if (!is_blank) {
      is_stopped_ = true;
      return;
    }
    if (container == ArgumentTyping::Container::kUnknown) {
      parent.mode = Mode::kHeld;
    } else {
      begin_value(out);
      const bool is_array = container == ArgumentTyping::Container::kArray;
      out += is_array ? '[' : '{';
      parent.mode = is_array ? Mode::kArray : Mode::kObject;
      parent.schema = typing_.container_schema(parent.schema);
    }
  }
  if (parent.mode == Mode::kText) {
    is_stopped_ = true;
    return;
  }
  if (parent.mode == Mode::kHeld) {
    frames_.push_back({.key = std::move(key), .mode = Mode::kHeld});
    return;
  }
  if (parent.mode == Mode::kObject && !parent.keys.insert(key).second) {
    is_stopped_ = true;  // the values of a repeated key become a list
    return;
  }
  const Json* schema = schema_of_member(parent, key);
  frames_.push_back({.key = std::move(key), .schema = schema});
}

const Json* ArgumentStream::schema_of_member(Frame& parent, const std::string& key) const {
  return parent.mode == Mode::kArray ? typing_.item_schema(parent.schema, parent.num_members)
                                     : typing_.member_schema(parent.schema, key);
}

void ArgumentStream::close(std::string_view key, std::string& out) {
  if (frames_.size() == 1 || frames_.back().key != key) {
    is_stopped_ = true;
    return;
  }
  Frame frame = std::move(frames_.back());
  switch (frame.mode) {
    case Mode::kText:
      out += escaped(frame.text) + '"';
      break;
    case Mode::kObject:
      out += '}';
      break;
    case Mode::kArray:
      out += ']';
      break;
    case Mode::kUndecided:
      frames_.back().key = frame.key;
      begin_value(out);
      out += dump(typing_.value({.key = frame.key, .text = frame.text}, frame.schema));
      break;
    case Mode::kHeld: {
      frame.held.key = frame.key;
      frame.held.text = frame.text;
      const bool is_blank = frame.text.find_first_not_of(" \t\r\n") == std::string::npos;
      if (!frame.held.members.empty() && is_blank) frame.held.text.clear();
      Frame& parent = frames_[frames_.size() - 2];
      if (parent.mode == Mode::kHeld) {
        parent.held.members.push_back(std::move(frame.held));
      } else {
        frames_.back().key = frame.key;
        begin_value(out);
        out += dump(typing_.value(frame.held, frame.schema));
      }
      break;
    }
  }
  frames_.pop_back();
}

}  // namespace winnow
