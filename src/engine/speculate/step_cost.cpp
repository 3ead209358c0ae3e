#include "engine/speculate/step_cost.h"

#include <fmt/format.h>

#include <cmath>
#include <initializer_list>

#include "base/error.h"

namespace winnow {
namespace {

/// Between two measured counts on the line through them, beyond the last on that of the last two.
double time_of(const std::vector<MeasuredTime>& times, std::int32_t count) {
  if (count <= times.front().count || times.size() == 1) {
    const MeasuredTime& first = times.front();
    return count <= first.count ? first.seconds : first.seconds * count / first.count;
  }
  std::size_t next = 1;
  while (next + 1 < times.size() && times[next].count < count) ++next;
  const MeasuredTime& low = times[next - 1];
  const MeasuredTime& high = times[next];
  return low.seconds +
         (high.seconds - low.seconds) * (count - low.count) / (high.count - low.count);
}

void check_times(const std::vector<MeasuredTime>& times) {
  MeasuredTime before;
  for (const MeasuredTime& time : times) {
    if (time.count <= before.count || !(time.seconds >= before.seconds) ||
        !std::isfinite(time.seconds)) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("step costs: {} s for {} after {} s for {}", time.seconds, time.count,
                              before.seconds, before.count));
    }
    before = time;
  }
}

}  // namespace

void StepCosts::validate() const {
  if (!(bytes_per_second > 0) || !std::isfinite(bytes_per_second)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("step costs: bandwidth {} bytes/s is not positive", bytes_per_second));
  }
  for (const double cost :
       {fixed_seconds, row_seconds, dense_bytes, expert_bytes, draft_fixed_seconds,
        draft_slot_seconds, draft_row_seconds, drafter_bytes, kv_token_bytes, row_kv_token_bytes,
        draft_kv_token_bytes}) {
    if (!(cost >= 0) || !std::isfinite(cost)) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("step costs: {} is negative or not finite", cost));
    }
  }
  if (num_experts < 0 || experts_per_token < 0 || experts_per_token > num_experts) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("step costs: {} of {} experts per token",
                                                         experts_per_token, num_experts));
  }
  for (const auto* times : {&step_times, &verify_times, &draft_times, &context_times}) {
    check_times(*times);
  }
}

double expected_distinct_experts(std::int32_t num_experts, std::int32_t experts_per_token,
                                 std::int32_t num_tokens) {
  if (num_experts <= 0) return 0;
  const auto all = static_cast<double>(num_experts);
  const double missed = 1.0 - static_cast<double>(experts_per_token) / all;
  return all * (1.0 - std::pow(missed, num_tokens));
}

double StepClock::model_seconds(const StepLoad& load) {
  const bool has_drafts = load.longest_draft > 0 && !costs_.verify_times.empty();
  const std::vector<MeasuredTime>& times = has_drafts ? costs_.verify_times : costs_.step_times;
  if (!times.empty()) return time_of(times, load.num_rows);
  const auto rows = static_cast<std::size_t>(load.num_rows);
  while (expert_bytes_.size() <= rows) {
    const auto num_tokens = static_cast<std::int32_t>(expert_bytes_.size());
    expert_bytes_.push_back(
        costs_.expert_bytes *
        expected_distinct_experts(costs_.num_experts, costs_.experts_per_token, num_tokens));
  }
  return costs_.fixed_seconds + costs_.row_seconds * static_cast<double>(load.num_rows) +
         (costs_.dense_bytes + expert_bytes_[rows]) / costs_.bytes_per_second;
}

double StepClock::context_seconds(std::int32_t num_tokens) const {
  if (costs_.context_times.empty() || num_tokens <= 0) return 0;
  return time_of(costs_.context_times, num_tokens) + factors_.context_seconds;
}

double StepClock::target_seconds(const StepLoad& load) {
  const double factor = load.longest_draft > 0 ? factors_.verify : factors_.plain;
  return (model_seconds(load) + load.kv_bytes / costs_.bytes_per_second) * factor;
}

double StepClock::draft_seconds(const StepLoad& load) const {
  if (load.longest_draft == 0) return 0;
  const double pass =
      costs_.draft_times.empty()
          ? costs_.draft_fixed_seconds + costs_.drafter_bytes / costs_.bytes_per_second
          : time_of(costs_.draft_times, load.num_drafting);
  return (pass + load.draft_kv_bytes / costs_.bytes_per_second +
          costs_.draft_slot_seconds * static_cast<double>(load.longest_draft) +
          costs_.draft_row_seconds * static_cast<double>(load.num_draft_rows)) *
         factors_.draft;
}

}  // namespace winnow
