// How many prompt tokens may share a step with decodes, so that the step ends in time for them
// (--target-itl-ms). Learns from steps: seconds = those of the decodes + slope * prompt tokens.
#pragma once

#include <cstdint>

namespace winnow {

/// Owned by the engine thread.
class PrefillPacer {
 public:
  /// `target_seconds` 0: no limit. `block_tokens`: the smallest limit, so that prefills proceed
  /// whatever the target.
  PrefillPacer(double target_seconds, std::int32_t block_tokens)
      : target_seconds_(target_seconds), block_tokens_(block_tokens) {}

  void observe(std::int32_t num_decode_tokens, std::int32_t num_prompt_tokens, double seconds);

  /// Prompt tokens for a step that decodes as well, whole blocks. One block until a step with
  /// prompt tokens has been seen.
  std::int32_t limit() const;

 private:
  double target_seconds_ = 0;
  std::int32_t block_tokens_ = 1;
  double decode_seconds_ = 0;  // of a step of decodes alone
  double seconds_per_token_ = 0;
};

}  // namespace winnow
