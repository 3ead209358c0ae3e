#include "text/tool_call_parser.h"

#include <algorithm>
#include <utility>

#include "text/minimax_markers.h"
#include "text/namespace_mark.h"

namespace winnow {
namespace {

constexpr std::string_view kCallOpener = "<invoke";
constexpr std::string_view kCallCloser = "</invoke>";
constexpr std::string_view kBlank = " \t\r\n";

/// Whether `text` is the beginning of `tag`, and not yet all of it.
bool may_become(std::string_view text, std::string_view tag) {
  return text.size() < tag.size() && tag.starts_with(text);
}

/// The elements of one call, between its opening and its closing tag.
class CallReader {
 public:
  explicit CallReader(std::string_view text) : text_(text) {}

  /// Nothing when the text is malformed.
  std::optional<TaggedValue> read() {
    TaggedValue root;
    if (!read_members(root, 0) || position_ != text_.size()) return std::nullopt;
    if (root.text.find_first_not_of(kBlank) != std::string::npos) return std::nullopt;
    return root;
  }

 private:
  /// Up to a closing tag, which stays, or the end of the text.
  bool read_members(TaggedValue& parent, int depth) {
    for (;;) {
      const std::optional<NamespaceMark> mark = find_namespace_mark(text_, position_);
      if (!mark) {
        parent.text += text_.substr(position_);
        position_ = text_.size();
        return true;
      }
      parent.text += text_.substr(position_, mark->begin - position_);
      position_ = mark->begin;
      const std::string_view tag = text_.substr(mark->tag);
      if (tag.starts_with("</")) return true;
      if (!tag.starts_with('<') || depth == kMaxTaggedDepth) return false;
      const std::size_t end = tag.find('>');
      if (end == std::string_view::npos || end == 1) return false;
      TaggedValue member{.key = std::string(tag.substr(1, end - 1))};
      position_ = mark->tag + end + 1;
      if (!read_members(member, depth + 1) || !read_closer(member.key)) return false;
      // Blanks that only set members apart are no text.
      if (!member.members.empty() && member.text.find_first_not_of(kBlank) == std::string::npos) {
        member.text.clear();
      }
      parent.members.push_back(std::move(member));
    }
  }

  bool read_closer(std::string_view key) {
    const std::optional<NamespaceMark> mark = find_namespace_mark(text_, position_);
    if (!mark || mark->begin != position_) return false;
    std::string_view tag = text_.substr(mark->tag);
    if (!tag.starts_with("</")) return false;
    tag.remove_prefix(2);
    if (!tag.starts_with(key) || !tag.substr(key.size()).starts_with('>')) return false;
    position_ = mark->tag + 2 + key.size() + 1;
    return true;
  }

  std::string_view text_;
  std::size_t position_ = 0;
};

/// The tool's name out of what stands between "<invoke" and ">"; nothing when it is malformed.
std::optional<std::string> tool_name(std::string_view attributes) {
  const std::size_t begin = attributes.find_first_not_of(kBlank);
  if (begin == 0 || begin == std::string_view::npos) return std::nullopt;
  std::string_view name = attributes.substr(begin);
  constexpr std::string_view kName = "name=";
  if (!name.starts_with(kName)) return std::nullopt;
  name.remove_prefix(kName.size());
  name = name.substr(0, name.find_last_not_of(kBlank) + 1);
  if (name.starts_with('"') || name.starts_with('\'')) {
    if (name.size() < 2 || name.back() != name.front()) return std::nullopt;
    name = name.substr(1, name.size() - 2);
  }
  if (name.empty()) return std::nullopt;
  return std::string(name);
}

}  // namespace

ToolCallParser::Piece ToolCallParser::add(std::string_view text) {
  if (state_ == State::kDone) return {};
  pending_ += text;
  return parse(false);
}

ToolCallParser::Piece ToolCallParser::finish() { return parse(true); }

ToolCallParser::Piece ToolCallParser::parse(bool is_last) {
  Piece out;
  while (state_ == State::kText && take_text(out, is_last)) {
  }
  while (state_ == State::kBlock && take_from_block(out)) {
  }
  if (state_ == State::kDone || is_last) pending_.clear();
  return out;
}

bool ToolCallParser::take_text(Piece& out, bool is_last) {
  const std::optional<NamespaceMark> mark = find_namespace_mark(pending_, 0);
  if (!mark) {
    const std::size_t held = is_last ? 0 : held_suffix(pending_, kToolNamespace);
    out.content.append(pending_, 0, pending_.size() - held);
    pending_.erase(0, pending_.size() - held);
    return false;
  }
  const std::string_view tag = std::string_view(pending_).substr(mark->tag);
  if (tag.starts_with(kToolBlockOpener)) {
    out.content.append(pending_, 0, mark->begin);
    pending_.erase(0, mark->tag + kToolBlockOpener.size());
    state_ = State::kBlock;
    return false;
  }
  // A block may begin here, else the marker is text like any other.
  const bool waits = !is_last && may_become(tag, kToolBlockOpener);
  const std::size_t taken = waits ? mark->begin : mark->begin + kToolNamespace.size();
  out.content.append(pending_, 0, taken);
  pending_.erase(0, taken);
  return !waits;
}

bool ToolCallParser::take_from_block(Piece& out) {
  const std::optional<NamespaceMark> mark = find_namespace_mark(pending_, 0);
  if (!mark) return false;
  const std::string_view tag = std::string_view(pending_).substr(mark->tag);
  if (tag.starts_with(kToolBlockCloser)) {
    state_ = State::kDone;
    return false;
  }
  if (tag.starts_with(kCallOpener)) return take_call(mark->begin, out);
  if (may_become(tag, kToolBlockCloser) || may_become(tag, kCallOpener)) return false;
  // A tag that belongs to no call: the model's text, up to the next marker.
  out.content.append(pending_, mark->begin, kToolNamespace.size());
  pending_.erase(0, mark->begin + kToolNamespace.size());
  return true;
}

bool ToolCallParser::take_call(std::size_t begin, Piece& out) {
  std::optional<NamespaceMark> end;
  for (std::size_t from = std::max(searched_, begin + kToolNamespace.size());;) {
    end = find_namespace_mark(pending_, from);
    if (!end) {
      searched_ = pending_.size() - held_suffix(pending_, kToolNamespace);
      tell_beginning(std::string_view(pending_).substr(begin), out);
      return false;
    }
    const std::string_view tag = std::string_view(pending_).substr(end->tag);
    if (tag.starts_with(kCallCloser)) break;
    if (may_become(tag, kCallCloser)) {
      searched_ = end->begin;
      tell_beginning(std::string_view(pending_).substr(begin, end->begin - begin), out);
      return false;
    }
    from = end->begin + kToolNamespace.size();
  }
  searched_ = 0;
  const std::string_view call = std::string_view(pending_).substr(begin, end->begin - begin);
  const std::size_t attributes = call.find(kCallOpener) + kCallOpener.size();
  const std::size_t opened = call.find('>', attributes);
  std::optional<std::string> name;
  std::optional<TaggedValue> values;
  if (opened != std::string_view::npos) {
    name = tool_name(call.substr(attributes, opened - attributes));
    values = CallReader(call.substr(opened + 1)).read();
  }
  const std::size_t after = end->tag + kCallCloser.size();
  if (name && values) {
    const nlohmann::ordered_json arguments = tool_arguments(*values, schema_of(*name));
    out.calls.push_back({*std::move(name),
                         arguments.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)});
    ++num_calls_;
    if (gives_deltas_) tell_end(out.calls.back(), out);
  } else {
    out.content.append(pending_, begin, after - begin);
  }
  open_.reset();
  pending_.erase(0, after);
  return true;
}

const nlohmann::ordered_json& ToolCallParser::schema_of(const std::string& name) const {
  static const nlohmann::ordered_json kUnknownTool;
  const auto schema = schemas_->find(name);
  return schema == schemas_->end() ? kUnknownTool : schema->second;
}

void ToolCallParser::tell_beginning(std::string_view call, Piece& out) {
  if (!gives_deltas_) return;
  std::string name;
  if (!open_) {
    const std::size_t attributes = call.find(kCallOpener) + kCallOpener.size();
    const std::size_t opened = call.find('>', attributes);
    if (opened == std::string_view::npos) return;
    const std::optional<std::string> found =
        tool_name(call.substr(attributes, opened - attributes));
    if (!found) return;
    name = *found;
    open_.emplace(OpenCall{.index = num_told_++,
                           .num_read = opened + 1,
                           .arguments = ArgumentStream(schema_of(name))});
  }
  // A marker may have been read in part, and belong to the closer as it seems now.
  std::string told;
  if (open_->num_read <= call.size()) {
    told = open_->arguments.add(call.substr(open_->num_read));
    open_->num_read = call.size();
  }
  if (name.empty() && told.empty()) return;
  open_->told += told;
  out.deltas.push_back(
      {.index = open_->index, .name = std::move(name), .arguments = std::move(told)});
}

void ToolCallParser::tell_end(const ToolCall& call, Piece& out) {
  if (open_ && call.arguments.starts_with(open_->told)) {
    out.deltas.push_back({.index = open_->index,
                          .name = {},
                          .arguments = call.arguments.substr(open_->told.size()),
                          .is_complete = true});
  } else {
    out.deltas.push_back({.index = num_told_++,
                          .name = call.name,
                          .arguments = call.arguments,
                          .is_complete = true});
  }
}

}  // namespace winnow
