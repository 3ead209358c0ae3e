// Log-probabilities of one row: the chosen token's, the most likely ones', and listed ones'.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/request.h"
#include "engine/sample/candidates.h"

namespace winnow {

struct LogprobQuery {
  TokenId chosen = 0;
  std::int32_t num_top = 0;  // -1: the whole vocabulary
  std::span<const TokenId> listed;
};

/// log softmax over the row: logit - max - log Σ e^(logit - max), the sum in fixed order. -inf
/// stays -inf. The row has no NaN and a finite maximum. `scratch` is overwritten.
PositionLogprobs row_logprobs(std::span<const float> logits, const LogprobQuery& query,
                              std::vector<Candidate>& scratch);

}  // namespace winnow
