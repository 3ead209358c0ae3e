// Running comparisons that become lines of a check's report.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/check.h"

namespace winnow {

class ValueComparison {
 public:
  /// One row.
  void add(std::span<const float> ours, std::span<const float> reference);
  /// Passed when the error stays within `tolerance` of the largest reference magnitude; a NaN
  /// fails.
  CheckLine line(std::string what, double tolerance) const;

 private:
  double max_error_ = 0.0;
  double magnitude_ = 0.0;
  std::vector<double> row_errors_;  // each relative to its reference
};

class ChoiceComparison {
 public:
  void add_equal() { ++num_compared_; }
  void add_different(bool is_tie);
  /// Passed when every difference is a tie.
  CheckLine line(std::string what) const;

 private:
  std::int64_t num_compared_ = 0;
  std::int64_t num_different_ = 0;
  std::int64_t num_ties_ = 0;
};

}  // namespace winnow
