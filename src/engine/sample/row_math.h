// Passes over one row of logits. Each sum has a fixed order that depends on the vocabulary's size
// alone.
#pragma once

#include <cstdint>
#include <span>

#include "base/strong_id.h"

namespace winnow {

struct RowScan {
  float max = 0.0F;     // -inf when every logit is
  TokenId argmax = 0;   // the lowest id among equals
  bool is_bad = false;  // a NaN or +inf somewhere: max and argmax mean nothing
};

RowScan scan_row(std::span<const float> logits);

/// Σ e^((logit - max) / T), inverse_temperature = 1 / T; at least 1 when max is the row's.
double sum_weights(std::span<const float> logits, float max, float inverse_temperature);

/// weights[i] = e^((logits[i] - max) / T).
void fill_weights(std::span<const float> logits, float max, float inverse_temperature,
                  std::span<float> weights);

/// 1 + the number of tokens ahead of `token`: higher logit, or equal logit and lower id.
std::int32_t rank_of(std::span<const float> logits, TokenId token);

}  // namespace winnow
