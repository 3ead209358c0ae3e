#include "engine/speculate/step_cost.h"

#include <fmt/format.h>

#include <cmath>
#include <initializer_list>

#include "base/error.h"

namespace winnow {

void StepCosts::validate() const {
  if (!(bytes_per_second > 0) || !std::isfinite(bytes_per_second)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("step costs: bandwidth {} bytes/s is not positive", bytes_per_second));
  }
  for (const double cost :
       {fixed_seconds, row_seconds, dense_bytes, expert_bytes, draft_fixed_seconds,
        draft_slot_seconds, draft_row_seconds, drafter_bytes}) {
    if (!(cost >= 0) || !std::isfinite(cost)) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("step costs: {} is negative or not finite", cost));
    }
  }
  if (num_experts < 0 || experts_per_token < 0 || experts_per_token > num_experts) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("step costs: {} of {} experts per token",
                                                         experts_per_token, num_experts));
  }
}

double expected_distinct_experts(std::int32_t num_experts, std::int32_t experts_per_token,
                                 std::int32_t num_tokens) {
  if (num_experts <= 0) return 0;
  const auto all = static_cast<double>(num_experts);
  const double missed = 1.0 - static_cast<double>(experts_per_token) / all;
  return all * (1.0 - std::pow(missed, num_tokens));
}

double StepClock::seconds(const StepLoad& load) {
  const auto rows = static_cast<std::size_t>(load.num_rows);
  while (expert_bytes_.size() <= rows) {
    const auto num_tokens = static_cast<std::int32_t>(expert_bytes_.size());
    expert_bytes_.push_back(
        costs_.expert_bytes *
        expected_distinct_experts(costs_.num_experts, costs_.experts_per_token, num_tokens));
  }
  double bytes = costs_.dense_bytes + expert_bytes_[rows] + load.kv_bytes;
  double seconds = costs_.fixed_seconds + costs_.row_seconds * static_cast<double>(load.num_rows);
  if (load.longest_draft > 0) {
    bytes += costs_.drafter_bytes;
    seconds += costs_.draft_fixed_seconds +
               costs_.draft_slot_seconds * static_cast<double>(load.longest_draft) +
               costs_.draft_row_seconds * static_cast<double>(load.num_draft_rows);
  }
  return seconds + bytes / costs_.bytes_per_second;
}

}  // namespace winnow
