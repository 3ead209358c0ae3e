// Repetition, presence and frequency penalties of one choice, kept up to date token by token.
// Only tokens that occurred are stored: a penalty costs what it changes, not the vocabulary.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/sampling_params.h"

namespace winnow {

/// logit' = (logit > 0 ? logit / r : logit * r if the token is in prompt or output)
///          - frequency * count in output - presence * [count in output > 0].
class Penalties {
 public:
  Penalties() = default;
  Penalties(const SamplingParams& params, std::span<const TokenId> prompt);

  bool is_active() const { return is_active_; }
  void add_output(TokenId token);
  /// Undoes the last add_output of this token.
  void remove_output(TokenId token);
  void apply(std::span<float> logits) const;

 private:
  struct Occurrence {
    TokenId token = 0;
    std::int32_t output_count = 0;
    bool in_prompt = false;
  };
  Occurrence& occurrence(TokenId token);

  bool is_active_ = false;
  float repetition_ = 1.0F, presence_ = 0.0F, frequency_ = 0.0F;
  std::vector<Occurrence> occurrences_;
  std::unordered_map<TokenId, std::size_t> index_;
};

}  // namespace winnow
