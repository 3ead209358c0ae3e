#include "model/comparison.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/assert.h"

namespace winnow {

namespace {

/// The upper one of two middle values; 0 of nothing.
double median_of(std::vector<double> values) {
  if (values.empty()) return 0.0;
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

void ValueComparison::add(std::span<const float> ours, std::span<const float> reference) {
  WINNOW_ASSERT(ours.size() == reference.size(), "equal sizes", ours.size(), reference.size());
  double squared_error = 0.0;
  double squared_reference = 0.0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double error = std::abs(double{ours[i]} - double{reference[i]});
    max_error_ =
        std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(max_error_, error);
    magnitude_ = std::max(magnitude_, std::abs(double{reference[i]}));
    squared_error += error * error;
    squared_reference += double{reference[i]} * double{reference[i]};
  }
  const double row = squared_error == 0.0 ? 0.0 : std::sqrt(squared_error / squared_reference);
  row_errors_.push_back(std::isnan(row) ? std::numeric_limits<double>::infinity() : row);
}

CheckLine ValueComparison::line(std::string what, double tolerance) const {
  const double relative = max_error_ == 0.0 ? 0.0 : max_error_ / magnitude_;
  return {.what = std::move(what),
          .max_error = max_error_,
          .relative_error = relative,
          .median_error = median_of(row_errors_),
          .passed = relative <= tolerance};
}

void ChoiceComparison::add_different(bool is_tie) {
  ++num_compared_;
  ++num_different_;
  if (is_tie) ++num_ties_;
}

CheckLine ChoiceComparison::line(std::string what) const {
  return {.what = std::move(what),
          .num_compared = num_compared_,
          .num_different = num_different_,
          .num_ties = num_ties_,
          .is_choice = true,
          .passed = num_different_ == num_ties_};
}

}  // namespace winnow
