#include "engine/prefill_pacer.h"

#include <algorithm>
#include <limits>

namespace winnow {
namespace {

constexpr double kNewShare = 0.125;  // follows a change of load within some ten steps

void follow(double& average, double value) {
  average = average == 0 ? value : average + kNewShare * (value - average);
}

}  // namespace

void PrefillPacer::observe(std::int32_t num_decode_tokens, std::int32_t num_prompt_tokens,
                           double seconds) {
  if (num_prompt_tokens == 0) {
    follow(decode_seconds_, seconds);
    return;
  }
  const double decodes = num_decode_tokens > 0 ? std::min(decode_seconds_, seconds) : 0.0;
  follow(seconds_per_token_, (seconds - decodes) / num_prompt_tokens);
}

std::int32_t PrefillPacer::limit() const {
  if (target_seconds_ <= 0) return std::numeric_limits<std::int32_t>::max();
  if (seconds_per_token_ <= 0) return block_tokens_;
  const double tokens = (target_seconds_ - decode_seconds_) / seconds_per_token_;
  const double blocks = std::clamp(tokens / block_tokens_, 1.0, 1e6);
  return static_cast<std::int32_t>(blocks) * block_tokens_;
}

}  // namespace winnow
