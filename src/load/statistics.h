// What a run's times are boiled down to.
#pragma once

#include <vector>

namespace winnow::load {

/// Linear interpolation at (n - 1) · percent / 100 of ascending values, as numpy and the tools that
/// people compare with have it. 0 of nothing.
double percentile(const std::vector<double>& ascending, double percent);

/// 0 of nothing.
double median(std::vector<double> values);

struct Summary {
  double mean = 0;
  double median = 0;
  double deviation = 0;             // of the population
  std::vector<double> percentiles;  // of `percents`, in their order
};

/// Zeros of nothing.
Summary summarise(std::vector<double> values, const std::vector<double>& percents);

}  // namespace winnow::load
