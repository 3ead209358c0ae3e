#include "grammar/output_constraint.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/assert.h"
#include "grammar/grammar_vocabulary.h"
#include "text/minimax_markers.h"

namespace winnow {
namespace {

void set(std::span<std::uint32_t> mask, TokenId token) {
  mask[static_cast<std::size_t>(token) / 32] |= 1U << (token % 32);
}

void clear(std::span<std::uint32_t> mask, TokenId token) {
  mask[static_cast<std::size_t>(token) / 32] &= ~(1U << (token % 32));
}

}  // namespace

OutputConstraint::OutputConstraint(std::shared_ptr<const CompiledGrammar> grammar,
                                   ConstraintStart start, bool tool_block_ends_thinking)
    : grammar_(std::move(grammar)),
      phase_(start == ConstraintStart::kAnswer     ? Phase::kAnswer
             : start == ConstraintStart::kThinking ? Phase::kThinking
                                                   : Phase::kStart),
      tool_block_ends_thinking_(tool_block_ends_thinking) {}

OutputConstraint::OutputConstraint(const OutputConstraint& other)
    : grammar_(other.grammar_.clone()),
      phase_(other.phase_),
      tool_block_ends_thinking_(other.tool_block_ends_thinking_),
      is_grammar_alive_(other.is_grammar_alive_),
      seen_(other.seen_) {}

std::unique_ptr<OutputConstraint> OutputConstraint::clone() const {
  return std::unique_ptr<OutputConstraint>(new OutputConstraint(*this));
}

bool OutputConstraint::fill_mask(std::span<std::uint32_t> mask) {
  switch (phase_) {
    case Phase::kThinking:
      fill_thinking_mask(mask);
      return true;
    case Phase::kStart:
      fill_start_mask(mask);
      return true;
    case Phase::kAnswer:
      break;
  }
  return grammar_.fill_mask(mask);
}

std::optional<TokenId> OutputConstraint::end_detour() const {
  if (phase_ != Phase::kThinking) return std::nullopt;
  const std::span<const TokenId> closers = vocabulary().spelling(kThinkCloser);
  return closers.empty() ? std::nullopt : std::optional(closers.front());
}

bool OutputConstraint::may_begin(std::string_view text) const {
  // Not grammar_: at the start, what precedes a marker may have moved it.
  return GrammarState(grammar_.grammar()).accept_text(text);
}

std::optional<std::size_t> OutputConstraint::answer_begin(std::string_view text) const {
  const std::size_t closer = text.find(kThinkCloser);
  const std::size_t block =
      tool_block_ends_thinking_ ? text.find(kToolBlock) : std::string_view::npos;
  if (closer == std::string_view::npos && block == std::string_view::npos) return std::nullopt;
  return block < closer ? block : closer + kThinkCloser.size();
}

/// Thinking is free but for two things: the run may not end in it, since the answer is still to
/// come, and a token that ends a marker and goes on must go on as the answer may begin. Few tokens
/// can: those that start with the rest of a marker whose beginning has been written.
void OutputConstraint::fill_thinking_mask(std::span<std::uint32_t> mask) {
  std::ranges::fill(mask, ~0U);
  for (const TokenId token : vocabulary().stop_ids()) clear(mask, token);
  const auto check = [&](std::string_view marker) {
    for (std::size_t n = std::min(seen_.size(), marker.size() - 1); n > 0; --n) {
      if (!std::string_view(seen_).ends_with(marker.substr(0, n))) continue;
      for (const TokenId token : vocabulary().starting_with(marker.substr(n))) {
        const std::string text = seen_ + std::string(vocabulary().bytes(token));
        const std::optional<std::size_t> begin = answer_begin(text);
        if (!begin || *begin == text.size() || may_begin(text.substr(*begin))) continue;
        clear(mask, token);
      }
    }
  };
  check(kThinkCloser);
  if (tool_block_ends_thinking_) check(kToolBlock);
}

void OutputConstraint::fill_start_mask(std::span<std::uint32_t> mask) {
  if (!is_grammar_alive_) {
    std::ranges::fill(mask, 0U);
  } else if (!grammar_.fill_mask(mask)) {
    std::ranges::fill(mask, ~0U);
    return;
  }
  for (const std::string_view marker : {kThinkCloser, kThinkOpener}) {
    if (!marker.starts_with(seen_)) continue;
    const std::string_view rest = marker.substr(seen_.size());
    for (std::size_t n = 1; n < rest.size(); ++n) {
      for (const TokenId token : vocabulary().spelling(rest.substr(0, n))) set(mask, token);
    }
    for (const TokenId token : vocabulary().starting_with(rest)) {
      const std::string_view beyond = vocabulary().bytes(token).substr(rest.size());
      if (beyond.empty() ||
          (marker == kThinkOpener ? !answer_begin(beyond).has_value() : may_begin(beyond))) {
        set(mask, token);
      }
    }
  }
}

void OutputConstraint::accept(TokenId token) {
  Undo undo{.phase = phase_,
            .is_grammar_alive = is_grammar_alive_,
            .num_steps = 0,
            .seen = seen_,
            .replaced = std::nullopt};
  switch (phase_) {
    case Phase::kStart:
      accept_at_start(token, undo);
      break;
    case Phase::kThinking:
      accept_in_thinking(vocabulary().bytes(token), undo);
      break;
    case Phase::kAnswer:
      undo.num_steps = grammar_.accept(token) ? 1 : 0;
      break;
  }
  undo_.push_back(std::move(undo));
  if (undo_.size() > kMaxUndo) undo_.pop_front();
}

void OutputConstraint::accept_at_start(TokenId token, Undo& undo) {
  seen_ += vocabulary().bytes(token);
  if (is_grammar_alive_) {
    is_grammar_alive_ = grammar_.accept(token);
    undo.num_steps = is_grammar_alive_ ? 1 : 0;
  }
  if (seen_.starts_with(kThinkOpener) || seen_.starts_with(kThinkCloser)) {
    const bool is_opener = seen_.starts_with(kThinkOpener);
    const std::string beyond = seen_.substr(is_opener ? kThinkOpener.size() : kThinkCloser.size());
    // What the grammar made of the marker does not count.
    undo.replaced = std::move(grammar_);
    grammar_ = GrammarState(undo.replaced->grammar());
    if (is_opener) {
      phase_ = Phase::kThinking;
      seen_.clear();
      accept_in_thinking(beyond, undo);
    } else {
      begin_answer(beyond, undo);
    }
    return;
  }
  if (kThinkOpener.starts_with(seen_) || kThinkCloser.starts_with(seen_)) return;
  phase_ = Phase::kAnswer;
  seen_.clear();
}

void OutputConstraint::accept_in_thinking(std::string_view bytes, Undo& undo) {
  seen_ += bytes;
  if (const std::optional<std::size_t> begin = answer_begin(seen_)) {
    begin_answer(seen_.substr(*begin), undo);
    return;
  }
  std::size_t held = held_suffix(seen_, kThinkCloser);
  if (tool_block_ends_thinking_) held = std::max(held, held_suffix(seen_, kToolBlock));
  seen_.erase(0, seen_.size() - held);
}

void OutputConstraint::begin_answer(std::string_view text, Undo& undo) {
  phase_ = Phase::kAnswer;
  is_grammar_alive_ = true;
  const std::string beginning(text);  // `text` may view seen_
  seen_.clear();
  if (beginning.empty() || !grammar_.accept_text(beginning)) return;
  // Where grammar_ replaced another, that one comes back whole.
  if (!undo.replaced) undo.num_steps = 1;
}

void OutputConstraint::rollback(std::int32_t num_tokens) {
  WINNOW_ASSERT(num_tokens <= std::ssize(undo_), "only what was accepted is taken back", num_tokens,
                undo_.size());
  for (; num_tokens > 0; --num_tokens) {
    Undo& undo = undo_.back();
    if (undo.replaced) grammar_ = *std::move(undo.replaced);
    if (undo.num_steps > 0) grammar_.rollback(undo.num_steps);
    phase_ = undo.phase;
    is_grammar_alive_ = undo.is_grammar_alive;
    seen_ = std::move(undo.seen);
    undo_.pop_back();
  }
}

}  // namespace winnow
