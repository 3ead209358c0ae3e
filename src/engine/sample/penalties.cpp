#include "engine/sample/penalties.h"

#include <algorithm>
#include <limits>

#include "base/assert.h"

namespace winnow {

Penalties::Penalties(const SamplingParams& params, std::span<const TokenId> prompt)
    : repetition_(params.repetition_penalty),
      presence_(params.presence_penalty),
      frequency_(params.frequency_penalty) {
  is_active_ = repetition_ != 1.0F || presence_ != 0.0F || frequency_ != 0.0F;
  if (repetition_ != 1.0F) {
    for (const TokenId token : prompt) occurrence(token).in_prompt = true;
  }
}

void Penalties::add_output(TokenId token) {
  if (is_active_) ++occurrence(token).output_count;
}

void Penalties::remove_output(TokenId token) {
  if (!is_active_) return;
  Occurrence& found = occurrence(token);
  WINNOW_ASSERT(found.output_count > 0, "only added tokens are removed", token);
  --found.output_count;
}

void Penalties::apply(std::span<float> logits) const {
  constexpr float kLargest = std::numeric_limits<float>::max();
  for (const Occurrence& o : occurrences_) {
    if (!o.in_prompt && o.output_count == 0) continue;
    float& logit = logits[static_cast<std::size_t>(o.token)];
    if (repetition_ != 1.0F) logit = logit > 0.0F ? logit / repetition_ : logit * repetition_;
    if (o.output_count > 0) {
      logit -= frequency_ * static_cast<float>(o.output_count);
      logit -= presence_;
    }
    logit = std::min(logit, kLargest);  // dividing by a tiny penalty may overflow
  }
}

Penalties::Occurrence& Penalties::occurrence(TokenId token) {
  const auto [at, is_new] = index_.try_emplace(token, occurrences_.size());
  if (is_new) occurrences_.push_back({.token = token});
  return occurrences_[at->second];
}

}  // namespace winnow
