// Requests whose updates are written down, and rules every request's updates obey. For tests.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/request.h"

namespace winnow::testing {

struct ChoiceOutput {
  std::vector<TokenId> tokens;
  std::vector<std::optional<PositionLogprobs>> logprobs;  // per token
  std::vector<std::vector<std::int32_t>> kept_blocks;     // per token
  FinishReason finish_reason = FinishReason::kNone;
  std::optional<TokenId> stop_token;
  ErrorCode error_code = ErrorCode::kInternal;
  std::string error;
  std::int32_t num_final_updates = 0;
};

/// Written on the engine thread; read it once the request is done.
struct Collected {
  std::vector<ChoiceOutput> choices;
  std::vector<std::optional<PositionLogprobs>> prompt_logprobs;
  RequestStats stats;
  std::int32_t num_done = 0;
  std::string fault;  // the first rule an update broke

  bool is_done() const { return num_done > 0; }
  /// Empty when each choice got exactly one final update, the last, and on_done came once, after.
  std::string check() const;
};

/// Sets the callbacks of `request` so that `collected` records them.
void collect(GenerationRequest& request, const std::shared_ptr<Collected>& collected);

/// Empty when both say the same tokens, reasons and, bit for bit, log-probabilities.
std::string first_difference(const Collected& a, const Collected& b);

/// A prompt of `length` tokens in [first, first + range), reproducible from the seed.
std::vector<TokenId> make_prompt(std::uint64_t seed, std::int32_t length, TokenId first,
                                 std::int32_t range);

}  // namespace winnow::testing
