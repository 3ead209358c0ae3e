#include "engine/testing/g_statistic.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace winnow::testing {

double g_deviation(const OutputCounts& counts, const OutputProbabilities& exact,
                   std::int64_t num_runs) {
  double g = 0, degrees = -1, pooled_expected = 0, pooled_seen = 0;
  const auto add = [&](double seen, double expected) {
    if (seen > 0) g += 2 * seen * std::log(seen / expected);
    ++degrees;
  };
  for (const auto& [output, count] : counts) {
    if (!exact.contains(output)) return std::numeric_limits<double>::infinity();
  }
  for (const auto& [output, probability] : exact) {
    const double expected = probability * static_cast<double>(num_runs);
    const auto found = counts.find(output);
    const auto seen = found == counts.end() ? 0.0 : static_cast<double>(found->second);
    if (expected < 10) {
      pooled_expected += expected;
      pooled_seen += seen;
    } else {
      add(seen, expected);
    }
  }
  if (pooled_expected >= 10) add(pooled_seen, pooled_expected);
  if (degrees < 1) return 0;
  const double spread = 2.0 / (9.0 * degrees);
  return (std::cbrt(std::max(g, 0.0) / degrees) - (1.0 - spread)) / std::sqrt(spread);
}

}  // namespace winnow::testing
