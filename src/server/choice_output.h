// One choice on its way out: token ids to visible text, stop strings, and what may be sent now.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "engine/request.h"
#include "text/detokenizer.h"
#include "text/reasoning_parser.h"
#include "text/stop_matcher.h"
#include "text/tool_call_parser.h"

namespace winnow::server {

/// What ended a choice besides eos and the length: a stop string or a stop token id.
using StopReason = std::variant<std::monostate, std::string, TokenId>;

/// Text that became visible, and exactly the tokens behind it.
struct ChoiceDelta {
  std::int32_t choice = 0;  // over all prompts of the request
  std::string reasoning;    // thinking, when it is split off
  std::string text;
  std::vector<ToolCall> calls;             // complete ones
  std::vector<ToolCallDelta> call_deltas;  // all that is known of calls, with tells_calls_early
  std::vector<SampledToken> tokens;
  FinishReason finish_reason = FinishReason::kNone;
  StopReason stop_reason;
};

/// "stop", "length", "abort", "error".
std::string_view finish_reason_name(FinishReason reason);

struct TextOptions {
  std::vector<std::string> stop;
  bool include_stop_string = false;
  bool skip_special_tokens = true;
  std::int32_t min_tokens = 0;  // stop strings are looked for in the text after these
  /// Where the reply begins when thinking is split off; stop strings then apply to the answer only.
  std::optional<ReasoningParser::State> reasoning;
  bool thinks_first_only = false;  // an opener later on is part of the answer
  /// Tools whose calls are taken out of the answer; null: calls stay in it.
  std::shared_ptr<const ToolSchemas> tools = nullptr;
  bool ends_after_call = false;
  bool tells_calls_early = false;  // pieces of calls go out while they are being written
};

/// Used by one thread at a time.
class ChoiceOutput {
 public:
  ChoiceOutput(const Tokenizer& tokenizer, const TextOptions& options, std::int32_t choice);

  /// True when a stop string was found and the engine has to be told.
  [[nodiscard]] bool add(OutputUpdate&& update);

  /// Whether there is something to send once `interval` tokens have gathered; the first text and
  /// the end go at once.
  bool is_ready(std::int32_t interval) const;
  /// Everything visible so far that was not taken yet.
  ChoiceDelta take();

  bool is_finished() const { return finish_reason_ != FinishReason::kNone; }
  FinishReason finish_reason() const { return finish_reason_; }
  std::int32_t num_tokens() const { return num_tokens_; }
  /// Tokens of the thinking, markers left out.
  std::int32_t num_reasoning_tokens() const { return num_reasoning_tokens_; }

 private:
  /// Visible text as it comes out of the detokenizer, and the end of it.
  void add_visible(std::string_view text);
  /// The answer, calls included, and the answer without them.
  void add_answer(std::string_view text);
  void add_text(std::string_view text);
  void take_calls(ToolCallParser::Piece&& piece);
  bool is_thinking() const;
  void finish(FinishReason reason);

  Detokenizer detokenizer_;
  std::optional<ReasoningParser> reasoning_parser_;
  std::optional<ToolCallParser> tool_parser_;
  StopMatcher matcher_;
  TextOptions options_;
  std::int32_t choice_;
  std::int32_t num_tokens_ = 0;
  std::int32_t num_reasoning_tokens_ = 0;
  std::int32_t num_calls_ = 0;
  bool has_told_call_ = false;
  bool is_first_ = true;
  FinishReason finish_reason_ = FinishReason::kNone;
  StopReason stop_reason_;
  std::string reasoning_;
  std::vector<ToolCall> calls_;
  std::vector<ToolCallDelta> call_deltas_;
  std::string text_;
  std::vector<SampledToken> tokens_;
};

}  // namespace winnow::server
