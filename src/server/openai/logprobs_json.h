// Log-probabilities in the three shapes the API has. Source: spec/serving.md 2.3, 2.5.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"
#include "server/json_fields.h"

namespace winnow {
class Tokenizer;
}

namespace winnow::server {

inline constexpr double kLogprobFloor = -9999.0;  // stands for minus infinity, which JSON lacks

/// Never below the floor, never NaN.
double json_logprob(float logprob);

/// The token's text with ill-formed bytes as U+FFFD, or "token_id:N".
std::string token_text(const Tokenizer& tokenizer, TokenId token, bool as_id);

/// [{token, logprob, bytes, top_logprobs}] of chat completions.
Json chat_logprobs(const Tokenizer& tokenizer, const std::vector<SampledToken>& tokens, bool as_id);

/// [null, {"id": {logprob, rank, decoded_token}}, …]
Json prompt_logprobs_json(const Tokenizer& tokenizer,
                          const std::vector<std::optional<PositionLogprobs>>& positions);

/// {tokens, token_logprobs, top_logprobs, text_offset} of plain completions, built up piece by
/// piece; offsets count Unicode characters of the text.
class CompletionLogprobs {
 public:
  CompletionLogprobs(const Tokenizer& tokenizer, bool as_id);
  /// An echoed prompt: its tokens, the first without a value.
  void add_prompt(const std::vector<TokenId>& prompt,
                  const std::vector<std::optional<PositionLogprobs>>& positions);
  void add(const std::vector<SampledToken>& tokens);
  /// What was added since the last take.
  Json take();
  bool is_empty() const { return tokens_.empty(); }

 private:
  void add_one(TokenId token, const PositionLogprobs* position);

  const Tokenizer& tokenizer_;
  bool as_id_;
  std::int64_t offset_ = 0;
  Json tokens_ = Json::array(), values_ = Json::array(), tops_ = Json::array(),
       offsets_ = Json::array();
};

}  // namespace winnow::server
