#include "load/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace winnow::load {

double percentile(const std::vector<double>& ascending, double percent) {
  if (ascending.empty()) return 0;
  const double place = static_cast<double>(ascending.size() - 1) * percent / 100.0;
  const auto below = static_cast<std::size_t>(std::floor(place));
  const std::size_t above = std::min(below + 1, ascending.size() - 1);
  const double share = place - static_cast<double>(below);
  return ascending[below] + (ascending[above] - ascending[below]) * share;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return percentile(values, 50);
}

Summary summarise(std::vector<double> values, const std::vector<double>& percents) {
  std::sort(values.begin(), values.end());
  Summary out;
  if (!values.empty()) {
    const auto count = static_cast<double>(values.size());
    out.mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
    double squares = 0;
    for (const double value : values) squares += (value - out.mean) * (value - out.mean);
    out.deviation = std::sqrt(squares / count);
  }
  out.median = percentile(values, 50);
  for (const double percent : percents) out.percentiles.push_back(percentile(values, percent));
  return out;
}

}  // namespace winnow::load
