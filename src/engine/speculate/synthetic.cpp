#include "engine/speculate/synthetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "engine/speculate/draft_walk.h"

namespace winnow {

SyntheticAcceptance::SyntheticAcceptance(std::span<const double> rates)
    : rates_(rates.begin(), rates.end()) {
  if (rates_.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "synthetic acceptance rates: none given",
                "give one rate per drafted token");
  }
  double before = 1.0;
  for (const double rate : rates_) {
    if (!(rate >= 0 && rate <= 1)) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("synthetic acceptance rate {} is not in [0, 1]", rate));
    }
    if (rate > before) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("synthetic acceptance rates rise from {} to {}", before, rate),
                  "each counts the steps that accept at least so many drafts");
    }
    before = rate;
  }
}

SyntheticAcceptance SyntheticAcceptance::of_length(double length, std::int32_t num_drafts) {
  if (!(length >= 1 && length <= num_drafts + 1)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("synthetic acceptance length {} is not in [1, {}]", length, num_drafts + 1),
        "it counts the token after the accepted drafts");
  }
  std::vector<double> rates(static_cast<std::size_t>(num_drafts));
  double left = length - 1;
  for (double& rate : rates) {
    rate = std::clamp(left, 0.0, 1.0);
    left -= rate;
  }
  return SyntheticAcceptance(rates);
}

double SyntheticAcceptance::conditional_rate(std::int32_t slot) const {
  const auto i = static_cast<std::size_t>(slot);
  if (i >= rates_.size()) return 0.0;
  const double before = i == 0 ? 1.0 : rates_[i - 1];
  return before > 0 ? rates_[i] / before : 0.0;
}

void verify_synthetic(const SyntheticAcceptance& acceptance, const VerifyInput& input,
                      SampleState& state, std::vector<TokenId>& context, VerifyScratch& scratch,
                      Verified& out) {
  out = {.tokens = std::move(out.tokens)};
  out.tokens.clear();
  DraftWalk walk(input, state, context, scratch);
  out.num_proposed = walk.num_drafts();
  while (!walk.is_over()) {
    out.status = walk.fill_target();
    if (out.status != SampleStatus::kOk) break;
    if (walk.is_at_end_of_drafts()) {
      out.tokens.push_back({.token = walk.draw_target()});
      break;
    }
    const TokenId draft = walk.draft();
    const double u = draw_uniform(walk.slot_key(), DrawStream::kAcceptTest);
    if (walk.may_follow(draft) && u < acceptance.conditional_rate(walk.length())) {
      out.tokens.push_back({.token = draft});
      ++out.num_accepted;
      walk.advance(draft);
      continue;
    }
    out.is_rejected = true;
    out.tokens.push_back(
        {.token = input.rules->is_greedy() ? walk.draw_target() : walk.draw_residual(1.0)});
    break;
  }
  walk.report(out.tokens);
}

}  // namespace winnow
