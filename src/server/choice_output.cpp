#include "server/choice_output.h"

#include <utility>

namespace winnow::server {

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kError:
      return "error";
    case FinishReason::kNone:
      break;
  }
  return "";
}

ChoiceOutput::ChoiceOutput(const Tokenizer& tokenizer, const TextOptions& options,
                           std::int32_t choice)
    : detokenizer_(tokenizer,
                   {.skip_special_tokens = options.skip_special_tokens,
                    .keep_format_markers = options.reasoning || options.tools != nullptr}),
      matcher_(options.stop, options.include_stop_string),
      options_(options),
      choice_(choice) {
  if (options.reasoning) {
    reasoning_parser_.emplace(*options.reasoning,
                              ReasoningOptions{.tools_active = options.tools != nullptr,
                                               .thinks_first_only = options.thinks_first_only});
  }
  if (options.tools != nullptr) tool_parser_.emplace(*options.tools, options.tells_calls_early);
}

bool ChoiceOutput::is_thinking() const {
  return reasoning_parser_ && reasoning_parser_->state() == ReasoningParser::State::kReasoning;
}

bool ChoiceOutput::add(OutputUpdate&& update) {
  if (is_finished()) return false;  // tokens sampled after a stop string
  const bool ends_with_stop_token = update.finish_reason == FinishReason::kStop;
  for (std::size_t i = 0; i < update.tokens.size(); ++i) {
    SampledToken& sampled = update.tokens[i];
    const TokenId token = sampled.token;
    ++num_tokens_;
    tokens_.push_back(std::move(sampled));
    const bool is_stop_token = ends_with_stop_token && i + 1 == update.tokens.size();
    if (is_stop_token && !options_.include_stop_string) break;
    const bool was_thinking = is_thinking();
    add_visible(detokenizer_.add(token));
    if (was_thinking && is_thinking()) ++num_reasoning_tokens_;
    if (matcher_.matched_index()) {
      stop_reason_ = options_.stop[*matcher_.matched_index()];
      finish_reason_ = FinishReason::kStop;
      return update.finish_reason == FinishReason::kNone;
    }
    if (options_.ends_after_call && num_calls_ > 0) {
      finish_reason_ = FinishReason::kStop;
      return update.finish_reason == FinishReason::kNone;
    }
  }
  if (update.stop_token) stop_reason_ = *update.stop_token;
  if (update.finish_reason != FinishReason::kNone) finish(update.finish_reason);
  return false;
}

void ChoiceOutput::add_visible(std::string_view text) {
  if (!reasoning_parser_) return add_answer(text);
  const ReasoningParser::Piece piece = reasoning_parser_->add(text);
  reasoning_ += piece.reasoning;
  add_answer(piece.content);
}

void ChoiceOutput::add_answer(std::string_view text) {
  if (!tool_parser_) return add_text(text);
  take_calls(tool_parser_->add(text));
}

void ChoiceOutput::take_calls(ToolCallParser::Piece&& piece) {
  add_text(piece.content);
  for (ToolCallDelta& delta : piece.deltas) {
    if (options_.ends_after_call && has_told_call_) break;
    has_told_call_ = has_told_call_ || delta.is_complete;
    call_deltas_.push_back(std::move(delta));
  }
  for (ToolCall& call : piece.calls) {
    if (options_.ends_after_call && num_calls_ > 0) return;
    calls_.push_back(std::move(call));
    ++num_calls_;
  }
}

void ChoiceOutput::add_text(std::string_view text) {
  if (num_tokens_ <= options_.min_tokens || options_.stop.empty()) {
    text_ += text;
  } else {
    text_ += matcher_.add(text);
  }
}

void ChoiceOutput::finish(FinishReason reason) {
  add_visible(detokenizer_.finish());
  if (reasoning_parser_) {
    const ReasoningParser::Piece rest = reasoning_parser_->finish();
    reasoning_ += rest.reasoning;
    add_answer(rest.content);
  }
  if (tool_parser_) take_calls(tool_parser_->finish());
  if (matcher_.matched_index()) {
    stop_reason_ = options_.stop[*matcher_.matched_index()];
    reason = FinishReason::kStop;
  } else {
    text_ += matcher_.finish();
  }
  finish_reason_ = reason;
}

bool ChoiceOutput::is_ready(std::int32_t interval) const {
  if (is_finished()) return true;
  if (text_.empty() && reasoning_.empty() && calls_.empty() && call_deltas_.empty()) return false;
  return is_first_ || static_cast<std::int32_t>(tokens_.size()) >= interval;
}

ChoiceDelta ChoiceOutput::take() {
  is_first_ = false;
  ChoiceDelta delta;
  delta.choice = choice_;
  delta.reasoning = std::exchange(reasoning_, {});
  delta.text = std::exchange(text_, {});
  delta.calls = std::exchange(calls_, {});
  delta.call_deltas = std::exchange(call_deltas_, {});
  delta.tokens = std::exchange(tokens_, {});
  delta.finish_reason = finish_reason_;
  delta.stop_reason = stop_reason_;
  return delta;
}

}  // namespace winnow::server
