#include "engine/sampling_params.h"

#include <fmt/format.h>

#include <cmath>
#include <span>
#include <string>

#include "base/error.h"

namespace winnow {
namespace {

constexpr std::int32_t kMaxChoices = 128;

[[noreturn]] void refuse(const std::string& param, const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message, {}, param);
}

/// NaN and infinities are named without repeating them, since JSON cannot.
void check_finite(const std::string& param, float value) {
  if (!std::isfinite(value)) refuse(param, param + " must be a finite number");
}

void check_range(const std::string& param, float value, float low, float high) {
  check_finite(param, value);
  if (value < low || value > high) {
    refuse(param, fmt::format("{} must be in [{}, {}], got {}", param, low, high, value));
  }
}

void check_token(const std::string& param, TokenId token, std::int32_t vocab_size) {
  if (token < 0 || token >= vocab_size) {
    refuse(param,
           fmt::format("{} holds token id {}, but ids are in [0, {})", param, token, vocab_size));
  }
}

void check_tokens(const std::string& param, std::span<const TokenId> tokens,
                  std::int32_t vocab_size) {
  for (const TokenId token : tokens) check_token(param, token, vocab_size);
}

void check_logprobs(const std::string& param, std::int32_t count, std::int32_t vocab_size,
                    std::int32_t max_logprobs) {
  if (count < -1) refuse(param, fmt::format("{} must be at least -1, got {}", param, count));
  const std::int32_t wanted = count == -1 ? vocab_size : count;
  if (max_logprobs != -1 && wanted > max_logprobs) {
    refuse(param, fmt::format("{} asks for {} alternatives, at most {} are served", param, wanted,
                              max_logprobs));
  }
}

}  // namespace

void SamplingParams::validate(std::int32_t vocab_size, std::int32_t max_logprobs) const {
  check_finite("temperature", temperature);
  if (temperature < 0.0F) {
    refuse("temperature", fmt::format("temperature must be at least 0, got {}", temperature));
  }
  check_finite("top_p", top_p);
  if (top_p <= 0.0F || top_p > 1.0F) {
    refuse("top_p", fmt::format("top_p must be in (0, 1], got {}", top_p));
  }
  if (top_k < -1) {
    refuse("top_k", fmt::format("top_k must be at least 1, or 0 or -1 for off, got {}", top_k));
  }
  check_range("min_p", min_p, 0.0F, 1.0F);
  check_finite("repetition_penalty", repetition_penalty);
  if (repetition_penalty <= 0.0F) {
    refuse("repetition_penalty",
           fmt::format("repetition_penalty must be above 0, got {}", repetition_penalty));
  }
  check_range("presence_penalty", presence_penalty, -2.0F, 2.0F);
  check_range("frequency_penalty", frequency_penalty, -2.0F, 2.0F);

  for (const auto& [token, bias] : logit_bias) {
    check_token("logit_bias", token, vocab_size);
    check_finite("logit_bias", bias);
  }
  check_tokens("allowed_token_ids", allowed_token_ids, vocab_size);
  for (const std::vector<TokenId>& word : bad_words) {
    if (word.empty()) refuse("bad_words", "bad_words holds an empty word");
    check_tokens("bad_words", word, vocab_size);
  }

  if (n < 1 || n > kMaxChoices) {
    refuse("n", fmt::format("n must be in [1, {}], got {}", kMaxChoices, n));
  }
  if (max_tokens < 0) {
    refuse("max_tokens", fmt::format("max_tokens must be at least 0, got {}", max_tokens));
  }
  if (min_tokens < 0 || min_tokens > max_tokens) {
    refuse("min_tokens", fmt::format("min_tokens must be in [0, max_tokens = {}], got {}",
                                     max_tokens, min_tokens));
  }
  check_tokens("stop_token_ids", stop_token_ids, vocab_size);

  if (logprobs) check_logprobs("logprobs", *logprobs, vocab_size, max_logprobs);
  if (prompt_logprobs) {
    check_logprobs("prompt_logprobs", *prompt_logprobs, vocab_size, max_logprobs);
  }
  check_tokens("logprob_token_ids", logprob_token_ids, vocab_size);
}

}  // namespace winnow
