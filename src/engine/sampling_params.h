// How the tokens of one request are chosen. Field names and meanings are those of the OpenAI API
// and of `vllm serve` (spec/serving.md 2.2); ranges are checked by validate().
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/strong_id.h"

namespace winnow {

struct SamplingParams {
  float temperature = 1.0F;  // below 1e-5: greedy, the rest of this block is ignored
  float top_p = 1.0F;        // (0, 1]
  std::int32_t top_k = 0;    // 0 or -1: off
  float min_p = 0.0F;        // [0, 1], relative to the most likely token, after temperature

  float repetition_penalty = 1.0F;                    // > 0; counts prompt and output
  float presence_penalty = 0.0F;                      // [-2, 2]; output only
  float frequency_penalty = 0.0F;                     // [-2, 2]; output only
  std::vector<std::pair<TokenId, float>> logit_bias;  // clamped to [-100, 100]
  std::vector<TokenId> allowed_token_ids;             // empty: all
  std::vector<std::vector<TokenId>> bad_words;        // token sequences never completed

  std::optional<std::int64_t> seed;  // none: the engine's seed and the request's number
  std::int32_t n = 1;                // choices; they share the prompt's blocks

  std::int32_t max_tokens = 16;
  std::int32_t min_tokens = 0;          // stop ids are masked before
  bool ignore_eos = false;              // neither eos nor the model's stop ids end the run
  std::vector<TokenId> stop_token_ids;  // of the request; the model's are known to the engine

  std::optional<std::int32_t> logprobs;  // alternatives per token; -1: the whole vocabulary
  std::optional<std::int32_t> prompt_logprobs;
  std::vector<TokenId> logprob_token_ids;  // report these ids at each position as well
  bool processed_logprobs = false;  // after temperature, penalties and masks; else of the raw model

  /// Throws Error{kInvalidArgument} whose param is the field at fault. NaN and infinities never
  /// pass.
  void validate(std::int32_t vocab_size, std::int32_t max_logprobs) const;
};

}  // namespace winnow
