#include "engine/draft_planner.h"

#include <algorithm>
#include <cmath>

#include "engine/scheduler.h"

namespace winnow {
namespace {

/// Every so many of a sequence's blocks are drafted whole, whatever the confidence: what is always
/// cut would never be counted.
constexpr std::int64_t kWholeBlockPeriod = 16;

/// Who is followed although nothing is expected of it is so for this many tokens after its prompt.
constexpr std::int32_t kTrialTokens = 16;

/// Of steps in a row that draft one does not, so that what drafts are compared with stays known.
constexpr std::int32_t kPlainPeriod = 128;

}  // namespace

DraftPlanner::DraftPlanner(const SpeculationOptions& options) : options_(options) {
  length_options_.max_length = options.num_drafts;
  if (options_.is_adaptive && options_.costs) chooser_.emplace(*options_.costs, length_options_);
}

void DraftPlanner::set_costs(const StepCosts& costs) {
  chooser_.emplace(costs, length_options_);
  is_corrected_ = true;
}

std::span<const std::int32_t> DraftPlanner::choose(std::span<const Candidate> candidates,
                                                   std::int32_t num_sequences,
                                                   std::int32_t num_other_rows) {
  for (const Candidate& candidate : candidates) candidate.sequence->drafting.is_probe = false;
  if (!chooser_) {
    const std::int32_t length =
        draft_length_for_batch(options_.lengths_by_batch, max_drafts(), num_sequences);
    plan_.lengths.clear();
    for (const Candidate& candidate : candidates) {
      plan_.lengths.push_back(std::min({candidate.limit, length, max_drafts()}));
    }
    return plan_.lengths;
  }
  forecasts_.clear();
  for (const Candidate& candidate : candidates) forecasts_.push_back(forecast_of(candidate));
  const OtherWork others{
      .num_prompt_rows = num_other_rows,
      .num_sequences = num_sequences - static_cast<std::int32_t>(candidates.size())};
  chooser_->clock().set_factors(correction_.factors(num_sequences));
  chooser_->choose(forecasts_, others, plan_.exploration_seconds, plan_);
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const bool is_probe = plan_.is_to_learn(i);
    DraftMemory& memory = candidates[i].sequence->drafting;
    memory.last_length = is_probe ? 0 : plan_.lengths[i];
    memory.is_probe = is_probe;
  }
  settle_context(candidates, others.num_sequences);
  is_planned_ = true;
  const bool is_drafting =
      std::ranges::any_of(plan_.lengths, [](auto length) { return length > 0; });
  if (!is_drafting || plan_.is_to_learn()) num_in_a_row_ = 0;
  if (is_corrected_ && ++num_in_a_row_ > kPlainPeriod) {
    num_in_a_row_ = 0;
    plan_.lengths.assign(candidates.size(), 0);
  }
  return plan_.lengths;
}

bool DraftPlanner::follows(Sequence& sequence, std::int32_t num_sequences) {
  std::optional<bool>& is_followed = sequence.drafting.is_followed;
  if (!is_followed) is_followed = is_worth_following(sequence, num_sequences);
  return *is_followed;
}

bool DraftPlanner::is_worth_following(const Sequence& sequence, std::int32_t num_sequences) {
  if (!chooser_) return true;
  StepClock& clock = chooser_->clock();
  clock.set_factors(correction_.factors(num_sequences));
  const DraftForecast stranger{
      .survival = forecast_survival(AcceptanceHistory(kSequenceDecay), history_, length_options_),
      .hoped = hoped_survival(AcceptanceHistory(kSequenceDecay), history_, length_options_),
      .limit = max_drafts(),
      .kv_bytes = sequence.num_tokens() * clock.costs().kv_token_bytes,
      .row_kv_bytes = sequence.num_tokens() * clock.costs().row_kv_token_bytes};
  forecasts_.assign(static_cast<std::size_t>(num_sequences), stranger);
  if (chooser_->gain(forecasts_) > 0) return true;
  const double trial =
      clock.context_seconds(sequence.num_tokens()) + kTrialTokens * clock.context_seconds(1);
  const double trials = trial * (num_sequences - num_followed_);  // all or none
  if (chooser_->hoped_gain(forecasts_) > 0 && context_budget_.can_hold(trials)) {
    if (plan_.exploration_seconds < 0 || !context_budget_.affords(trials)) return false;
  } else if (num_followed_ > 0 || !context_budget_.affords(trial)) {
    return false;
  }
  context_budget_.spend(clock.context_seconds(sequence.num_tokens()));
  ++num_followed_;
  return true;
}

/// Keeping up is paid for by what the step's drafts are expected to save, or else by the budget;
/// when that is spent the candidates are followed no longer.
void DraftPlanner::settle_context(std::span<const Candidate> candidates, std::int32_t num_others) {
  num_followed_ = static_cast<std::int32_t>(candidates.size());
  const auto num_tokens = static_cast<std::int32_t>(std::lround(plan_.expected_tokens));
  const double cost = chooser_->clock().context_seconds(num_tokens - num_others);
  context_budget_.settle(plan_.decode_seconds, plan_.gain_seconds - cost);
  if (context_budget_.affords(0)) return;
  context_budget_.clear_debt();
  num_followed_ = 0;
  for (const Candidate& candidate : candidates) candidate.sequence->drafting.is_followed = false;
}

DraftForecast DraftPlanner::forecast_of(const Candidate& candidate) const {
  const Sequence& sequence = *candidate.sequence;
  const StepCosts& costs = chooser_->costs();
  const double context = sequence.num_tokens();
  return {.survival = forecast_survival(sequence.drafting.history, history_, length_options_),
          .hoped = hoped_survival(sequence.drafting.history, history_, length_options_),
          .limit = std::min(candidate.limit, max_drafts()),
          .previous = sequence.drafting.last_length,
          .hope = forecast_hope(sequence.drafting.history, history_, length_options_),
          .kv_bytes = context * costs.kv_token_bytes,
          .row_kv_bytes = context * costs.row_kv_token_bytes,
          .draft_kv_bytes = draft_kv_bytes(context)};
}

double DraftPlanner::draft_kv_bytes(double context) const {
  const StepCosts& costs = chooser_->costs();
  const double window =
      costs.draft_window > 0 ? std::min<double>(context, costs.draft_window) : context;
  return window * costs.draft_kv_token_bytes;
}

bool DraftPlanner::keeps_slot(Sequence& sequence, float confidence) {
  DraftBlock& draft = sequence.draft;
  const auto slot = static_cast<std::size_t>(draft.size());
  const Survival survival = forecast_survival(sequence.drafting.history, history_, length_options_);
  const double before = slot == 0 ? 1.0 : survival[slot - 1];
  const double prior = before > 0 ? survival[slot] / before : 0.0;
  const double rate = calibration_.rate(confidence, prior);
  const bool is_whole =
      sequence.drafting.is_probe || sequence.drafting.num_blocks % kWholeBlockPeriod == 0;
  if (!is_whole && draft.survival * rate < plan_.min_survival) {
    draft.cut_rate = rate;
    return false;
  }
  draft.survival *= rate;
  draft.confidences.push_back(confidence);
  return true;
}

void DraftPlanner::observe(std::span<const Chunk> chunks) {
  if (!chooser_) return;
  for (const Chunk& chunk : chunks) {
    Sequence& sequence = *chunk.sequence;
    const DraftBlock& draft = sequence.draft;
    if (draft.size() == 0 && !draft.cut_rate) continue;
    const Verified& verified = draft.verified;
    // A block that was cut before its first slot has been verified nowhere.
    const std::int32_t num_accepted = draft.size() > 0 ? verified.num_accepted : 0;
    const bool is_rejected = draft.size() > 0 && verified.is_rejected;
    const bool is_cut = draft.cut_rate && num_accepted == draft.size();
    const std::optional<double> cut_rate = is_cut ? draft.cut_rate : std::nullopt;
    sequence.drafting.history.observe(num_accepted, is_rejected, cut_rate);
    history_.observe(num_accepted, is_rejected, cut_rate);
    ++sequence.drafting.num_blocks;
    const auto num_tested = static_cast<std::size_t>(num_accepted + (is_rejected ? 1 : 0));
    for (std::size_t i = 0; i < std::min(num_tested, draft.confidences.size()); ++i) {
      calibration_.observe(draft.confidences[i], static_cast<std::int32_t>(i) < num_accepted);
    }
    if (sequence.drafting.is_probe) plan_.settle_probe(num_accepted);
  }
}

void DraftPlanner::observe_step(const StepTimes& seen, std::span<const Chunk> chunks) {
  const bool is_probe = is_planned_ && plan_.is_to_learn();
  is_planned_ = false;
  if (!is_corrected_) return;
  const StepCosts& costs = chooser_->costs();
  StepLoad load;
  std::int32_t num_context_tokens = 0;
  for (const Chunk& chunk : chunks) {
    if (chunk.num_tokens > 1) return;  // a prompt's: not what is asked about
    const double context = chunk.end();
    const std::int32_t length = chunk.sequence->draft.size();
    if (chunk.sequence->drafting.is_followed.value_or(false)) {
      num_context_tokens += 1 + chunk.sequence->draft.num_accepted();
    }
    load.num_rows += 1 + length;
    load.kv_bytes += context * (costs.kv_token_bytes + costs.row_kv_token_bytes * length);
    load.num_draft_rows += length;
    if (chunk.num_drafts == 0) continue;
    ++load.num_drafting;
    load.longest_draft = std::max(load.longest_draft, chunk.num_drafts);
    load.draft_kv_bytes += draft_kv_bytes(context);
  }
  StepClock& clock = chooser_->clock();
  clock.set_factors({});
  const StepTimes expected{.target = clock.target_seconds(load),
                           .draft = clock.draft_seconds(load),
                           .context = clock.context_seconds(num_context_tokens)};
  correction_.observe(static_cast<std::int32_t>(chunks.size()), load.longest_draft > 0, expected,
                      seen);
  if (is_probe) plan_.settle_time(seen.target + seen.draft);
}

}  // namespace winnow
