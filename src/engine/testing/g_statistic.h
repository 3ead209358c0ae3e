// The G-test of counted outputs against exact probabilities. For tests.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/strong_id.h"

namespace winnow::testing {

using OutputCounts = std::map<std::vector<TokenId>, std::int64_t>;
using OutputProbabilities = std::map<std::vector<TokenId>, double>;

/// The G statistic as a standard normal deviate (Wilson and Hilferty); outputs expected less than
/// 10 times are pooled. Infinite when something impossible was seen.
double g_deviation(const OutputCounts& counts, const OutputProbabilities& exact,
                   std::int64_t num_runs);

}  // namespace winnow::testing
