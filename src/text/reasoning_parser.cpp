#include "text/reasoning_parser.h"

#include <algorithm>
#include <utility>

#include "text/minimax_markers.h"

namespace winnow {
namespace {

/// Moves the first `n` bytes of `from` to the end of `to`.
void move_front(std::string& from, std::size_t n, std::string& to) {
  to.append(from, 0, n);
  from.erase(0, n);
}

}  // namespace

ReasoningParser::ReasoningParser(State initial, bool tools_active)
    : state_(initial), tools_active_(tools_active) {}

ReasoningParser::Piece ReasoningParser::add(std::string_view text) {
  pending_ += text;
  return parse(false);
}

ReasoningParser::Piece ReasoningParser::finish() { return parse(true); }

bool ReasoningParser::pass_start(bool is_last) {
  const std::string_view marker = state_ == State::kOpen ? kThinkCloser : kThinkOpener;
  if (!is_last && pending_.size() < marker.size() && marker.starts_with(pending_)) return false;
  if (pending_.starts_with(marker)) pending_.erase(0, marker.size());
  is_at_start_ = false;
  return true;
}

void ReasoningParser::parse_open(Piece& out, bool is_last) {
  const std::size_t at = pending_.find(kThinkOpener);
  if (at != std::string::npos) {
    move_front(pending_, at, out.content);
    pending_.erase(0, kThinkOpener.size());
    state_ = State::kReasoning;
    return;
  }
  const std::size_t held = is_last ? 0 : held_suffix(pending_, kThinkOpener);
  move_front(pending_, pending_.size() - held, out.content);
}

void ReasoningParser::parse_reasoning(Piece& out, bool is_last) {
  const std::size_t close = pending_.find(kThinkCloser);
  const std::size_t tool = tools_active_ ? pending_.find(kToolBlock) : std::string::npos;
  if (close != std::string::npos || tool != std::string::npos) {
    move_front(pending_, std::min(close, tool), out.reasoning);
    if (close < tool) pending_.erase(0, kThinkCloser.size());
    state_ = State::kContent;
    return;
  }
  std::size_t held = 0;
  if (!is_last) {
    held = held_suffix(pending_, kThinkCloser);
    if (tools_active_) held = std::max(held, held_suffix(pending_, kToolBlock));
  }
  move_front(pending_, pending_.size() - held, out.reasoning);
}

ReasoningParser::Piece ReasoningParser::parse(bool is_last) {
  Piece out;
  if (is_at_start_ && state_ != State::kContent && !pass_start(is_last)) return out;
  if (state_ == State::kOpen) parse_open(out, is_last);
  if (state_ == State::kReasoning) parse_reasoning(out, is_last);
  if (state_ == State::kContent) out.content += std::exchange(pending_, {});
  return out;
}

}  // namespace winnow
