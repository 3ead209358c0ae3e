#include "server/openai/speculation_json.h"

#include <algorithm>
#include <string>
#include <vector>

namespace winnow::server {

Json speculation_json(const RequestStats& stats, std::int32_t num_speculative_tokens,
                      DraftReport report) {
  if (report == DraftReport::kNone || stats.drafted_steps.empty()) return nullptr;
  std::int64_t num_drafted = 0, num_accepted = 0;
  std::size_t longest = static_cast<std::size_t>(std::max(num_speculative_tokens, 0));
  for (const DraftedStep& step : stats.drafted_steps) {
    num_drafted += step.num_drafts;
    num_accepted += step.num_accepted;
    longest = std::max<std::size_t>(longest, step.num_drafts);
  }
  std::vector<std::int64_t> histogram(longest + 1);
  std::vector<std::vector<std::int64_t>> by_length(longest + 1);
  for (const DraftedStep& step : stats.drafted_steps) {
    ++histogram[step.num_accepted];
    std::vector<std::int64_t>& of_length = by_length[step.num_drafts];
    of_length.resize(std::size_t{step.num_drafts} + 1);
    ++of_length[step.num_accepted];
  }
  const auto num_steps = std::ssize(stats.drafted_steps);
  Json out;
  out["mean_acceptance_length"] =
      1.0 + static_cast<double>(num_accepted) / static_cast<double>(num_steps);
  out["draft_acceptance_rate"] =
      num_drafted > 0 ? static_cast<double>(num_accepted) / static_cast<double>(num_drafted) : 0.0;
  out["acceptance_histogram"] = histogram;
  out["acceptance_histogram_by_draft_length"] = Json::object();
  for (std::size_t length = 0; length < by_length.size(); ++length) {
    if (by_length[length].empty()) continue;
    out["acceptance_histogram_by_draft_length"][std::to_string(length)] = by_length[length];
  }
  out["num_spec_steps"] = num_steps;
  out["num_accepted_draft_tokens"] = num_accepted;
  out["num_draft_tokens"] = num_drafted;
  out["num_spec_tokens"] = num_speculative_tokens;
  if (report == DraftReport::kSummary) return out;
  Json accepted = Json::array(), drafted = Json::array();
  for (const DraftedStep& step : stats.drafted_steps) {
    accepted.push_back(step.num_accepted);
    drafted.push_back(step.num_drafts);
  }
  out["per_step_accepted"] = std::move(accepted);
  out["per_step_drafted"] = std::move(drafted);
  return out;
}

}  // namespace winnow::server
