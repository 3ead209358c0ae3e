#include "model/comparison.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/assert.h"

namespace winnow {

void ValueComparison::add(std::span<const float> ours, std::span<const float> reference) {
  WINNOW_ASSERT(ours.size() == reference.size(), "equal sizes", ours.size(), reference.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double error = std::abs(double{ours[i]} - double{reference[i]});
    max_error_ =
        std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(max_error_, error);
    magnitude_ = std::max(magnitude_, std::abs(double{reference[i]}));
    squared_error_ += error * error;
    squared_magnitude_ += double{reference[i]} * double{reference[i]};
  }
}

CheckLine ValueComparison::line(std::string what, double tolerance) const {
  const double relative = max_error_ == 0.0 ? 0.0 : max_error_ / magnitude_;
  return {.what = std::move(what),
          .max_error = max_error_,
          .relative_error = relative,
          .rms_error = squared_error_ == 0.0 ? 0.0 : std::sqrt(squared_error_ / squared_magnitude_),
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
