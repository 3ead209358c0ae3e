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

ReasoningParser::ReasoningParser(State initial, const ReasoningOptions& options)
    : state_(initial), options_(options) {}

ReasoningParser::Piece ReasoningParser::add(std::string_view text) {
  pending_ += text;
  return parse(false);
}

ReasoningParser::Piece ReasoningParser::finish() { return parse(true); }

bool ReasoningParser::pass_start(bool is_last) {
  if (state_ == State::kOpen && options_.thinks_first_only) return pass_decisive_start(is_last);
  const std::string_view marker = state_ == State::kOpen ? kThinkCloser : kThinkOpener;
  if (!is_last && pending_.size() < marker.size() && marker.starts_with(pending_)) return false;
  if (pending_.starts_with(marker)) pending_.erase(0, marker.size());
  is_at_start_ = false;
  return true;
}

bool ReasoningParser::pass_decisive_start(bool is_last) {
  const bool is_opener = pending_.starts_with(kThinkOpener);
  const bool is_closer = pending_.starts_with(kThinkCloser);
  const bool may_be_marker =
      kThinkOpener.starts_with(pending_) || kThinkCloser.starts_with(pending_);
  if (!is_last && !is_opener && !is_closer && may_be_marker) return false;
  if (is_opener) pending_.erase(0, kThinkOpener.size());
  if (is_closer) pending_.erase(0, kThinkCloser.size());
  state_ = is_opener ? State::kReasoning : State::kContent;
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
  const std::size_t tool = options_.tools_active ? pending_.find(kToolBlock) : std::string::npos;
  if (close != std::string::npos || tool != std::string::npos) {
    move_front(pending_, std::min(close, tool), out.reasoning);
    if (close < tool) pending_.erase(0, kThinkCloser.size());
    state_ = State::kContent;
    return;
  }
  std::size_t held = 0;
  if (!is_last) {
    held = held_suffix(pending_, kThinkCloser);
    if (options_.tools_active) held = std::max(held, held_suffix(pending_, kToolBlock));
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
