#include "engine/speculate/draft_length.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace winnow {
namespace {

/// Of the step without its prompts: what they take would make any draft look cheap.
double rate_of(const DraftPlan& plan) {
  const double seconds = plan.seconds - plan.prompt_seconds;
  return seconds > 0 ? plan.expected_tokens / seconds : 0.0;
}

void check(bool is_good, const char* name, double value, const char* accepted) {
  if (is_good) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("draft length: {} = {} is not {}", name, value, accepted));
}

}  // namespace

void AcceptanceHistory::observe(std::int32_t num_accepted, bool is_rejected,
                                std::optional<double> cut_rate) {
  if (is_rejected) cut_rate.reset();
  const std::int32_t num_tested = num_accepted + (is_rejected || cut_rate ? 1 : 0);
  if (num_tested == 0) return;
  for (std::int32_t i = 0; i < kMaxDraftLength; ++i) {
    Count& count = counts_[static_cast<std::size_t>(i)];
    count.tested = count.tested * decay_ + (i < num_tested ? 1.0 : 0.0);
    const double passed = i < num_accepted ? 1.0 : i < num_tested ? cut_rate.value_or(0.0) : 0.0;
    count.accepted = count.accepted * decay_ + passed;
  }
}

double AcceptanceHistory::rate(std::int32_t slot, double prior, double weight) const {
  const Count& count = counts_[static_cast<std::size_t>(slot)];
  return (count.accepted + weight * prior) / (count.tested + weight);
}

void DraftLengthOptions::validate() const {
  check(max_length >= 0 && max_length <= kMaxDraftLength, "max_length", max_length, "in [0, 16]");
  check(first_rate >= 0 && first_rate <= 1, "first_rate", first_rate, "in [0, 1]");
  check(engine_weight > 0, "engine_weight", engine_weight, "positive");
  check(sequence_weight > 0, "sequence_weight", sequence_weight, "positive");
  check(hysteresis >= 0 && hysteresis < 1, "hysteresis", hysteresis, "in [0, 1)");
  check(exploration >= 0 && exploration < 1, "exploration", exploration, "in [0, 1)");
  check(probe_length >= 1, "probe_length", probe_length, "at least 1");
}

Survival forecast_survival(const AcceptanceHistory& sequence, const AcceptanceHistory& engine,
                           const DraftLengthOptions& options) {
  Survival survival;
  double so_far = 1.0;
  double prior = options.first_rate;
  for (std::int32_t i = 0; i < kMaxDraftLength; ++i) {
    // A slot that was never tested is expected to do as the one before it.
    prior = engine.rate(i, prior, options.engine_weight);
    so_far *= sequence.rate(i, prior, options.sequence_weight);
    survival[static_cast<std::size_t>(i)] = so_far;
  }
  return survival;
}

Survival hoped_survival(const AcceptanceHistory& sequence, const AcceptanceHistory& engine,
                        const DraftLengthOptions& options) {
  Survival survival;
  double so_far = 1.0;
  for (std::int32_t i = 0; i < kMaxDraftLength; ++i) {
    const double prior = engine.rate(i, 1.0, options.engine_weight);
    so_far *= sequence.rate(i, prior, options.sequence_weight);
    survival[static_cast<std::size_t>(i)] = so_far;
  }
  return survival;
}

double forecast_hope(const AcceptanceHistory& sequence, const AcceptanceHistory& engine,
                     const DraftLengthOptions& options) {
  constexpr double kHopefulTests = 4.0;  // as if so many more had been passed
  const double prior = engine.rate(0, options.first_rate, options.engine_weight);
  const double weight = options.sequence_weight;
  return sequence.rate(0, (prior * weight + kHopefulTests) / (weight + kHopefulTests),
                       weight + kHopefulTests);
}

DraftLengthChooser::DraftLengthChooser(const StepCosts& costs, const DraftLengthOptions& options)
    : clock_(costs), options_(options) {
  costs.validate();
  options.validate();
}

void DraftLengthChooser::choose(std::span<const DraftForecast> requests, const OtherWork& others,
                                double exploration_seconds, DraftPlan& plan) {
  others_ = others;
  evaluate_plain(requests, plan);
  if (!requests.empty()) {
    find_best(requests, plan);
    keep_previous(requests, plan);
    if (!is_worth_beginning(requests, plan)) evaluate_plain(requests, plan);
  }
  plan.gain_seconds = gain_of(requests, plan);
  plan.exploration_seconds = exploration_seconds + options_.exploration * plan.decode_seconds;
  explore(requests, plan);

  // What one row less would save: beyond the last one rows may cost more than any of these.
  StepLoad load = load_of(requests, plan.lengths);
  if (load.num_draft_rows == 0) ++load.num_rows;
  const double with_row = clock_.seconds(load);
  --load.num_rows;
  plan.min_survival = (with_row - clock_.seconds(load)) * rate_of(plan);
}

double DraftLengthChooser::gain(std::span<const DraftForecast> requests) {
  others_ = {};
  evaluate_plain(requests, gain_plan_);
  find_best(requests, gain_plan_);
  return followed_gain_of(requests, gain_plan_);
}

double DraftLengthChooser::hoped_gain(std::span<const DraftForecast> requests) {
  others_ = {};
  find_hoped(requests, gain_plan_);
  return followed_gain_of(requests, gain_plan_);
}

/// What the tokens beyond plain decoding's are worth, less what the step takes longer.
double DraftLengthChooser::gain_of(std::span<const DraftForecast> requests,
                                   const DraftPlan& plan) const {
  return (plan.expected_tokens - plain_tokens(requests)) * plan.seconds_per_token -
         (plan.seconds - plan.plain_seconds);
}

double DraftLengthChooser::followed_gain_of(std::span<const DraftForecast> requests,
                                            const DraftPlan& plan) const {
  const auto num_tokens = static_cast<std::int32_t>(std::lround(plan.expected_tokens));
  return gain_of(requests, plan) - clock_.context_seconds(num_tokens);
}

void DraftLengthChooser::evaluate_plain(std::span<const DraftForecast> requests, DraftPlan& plan) {
  plan.probed = -1;
  plan.is_trial = false;
  plan.lengths.assign(requests.size(), 0);
  evaluate(requests, plan);
  plan.plain_seconds = plan.seconds;
  StepLoad decodes = load_of(requests, plan.lengths);
  decodes.num_rows -= others_.num_prompt_rows;
  plan.decode_seconds = decodes.num_rows > 0 ? clock_.seconds(decodes) : 0.0;
  plan.prompt_seconds = plan.plain_seconds - plan.decode_seconds;
  plan.seconds_per_token = rate_of(plan) > 0 ? 1.0 / rate_of(plan) : 0.0;
}

/// plan holds the plain step and gets the best one.
void DraftLengthChooser::find_best(std::span<const DraftForecast> requests, DraftPlan& plan) {
  slots_.clear();
  std::int32_t longest = 0;
  for (std::size_t r = 0; r < requests.size(); ++r) {
    const std::int32_t limit = std::min(requests[r].limit, options_.max_length);
    longest = std::max(longest, limit);
    for (std::int32_t i = 0; i < limit; ++i) {
      slots_.push_back({.survival = requests[r].survival[static_cast<std::size_t>(i)],
                        .request = static_cast<std::int32_t>(r),
                        .index = i});
    }
  }
  // By survival; earlier slots of a sequence first among equals, so that prefixes stay whole.
  std::ranges::sort(slots_, [](const Slot& a, const Slot& b) {
    if (a.survival != b.survival) return a.survival > b.survival;
    return a.index != b.index ? a.index < b.index : a.request < b.request;
  });

  const StepLoad plain = load_of(requests, plan.lengths);
  double best_rate = rate_of(plan);
  std::int32_t best_cap = 0;
  std::int32_t best_rows = 0;
  for (std::int32_t cap = 1; cap <= longest; ++cap) {
    StepLoad load = plain;
    load.longest_draft = cap;
    double tokens = plain_tokens(requests);
    for (const Slot& slot : slots_) {
      if (slot.index >= cap) continue;
      const DraftForecast& request = requests[static_cast<std::size_t>(slot.request)];
      ++load.num_rows;
      ++load.num_draft_rows;
      load.kv_bytes += request.row_kv_bytes;
      if (slot.index == 0) {
        load.draft_kv_bytes += request.draft_kv_bytes;
        ++load.num_drafting;
      }
      tokens += slot.survival;
      const double rate = tokens / (clock_.seconds(load) - plan.prompt_seconds);
      if (!(rate > best_rate)) continue;
      best_rate = rate;
      best_cap = cap;
      best_rows = load.num_draft_rows;
    }
  }
  for (const Slot& slot : slots_) {
    if (slot.index >= best_cap) continue;
    if (best_rows-- <= 0) break;
    ++plan.lengths[static_cast<std::size_t>(slot.request)];
  }
  evaluate(requests, plan);
}

/// Lengths that change with every step cost graphs and caches more than a small gain brings.
void DraftLengthChooser::keep_previous(std::span<const DraftForecast> requests, DraftPlan& plan) {
  DraftPlan kept;
  kept.prompt_seconds = plan.prompt_seconds;
  kept.lengths.swap(lengths_);
  kept.lengths = plan.lengths;
  for (std::size_t r = 0; r < requests.size(); ++r) {
    const std::int32_t limit = std::min(requests[r].limit, options_.max_length);
    if (requests[r].previous >= 0) kept.lengths[r] = std::min(requests[r].previous, limit);
  }
  evaluate(requests, kept);
  const double plain_rate =
      plan.decode_seconds > 0 ? plain_tokens(requests) / plan.decode_seconds : 0.0;
  const bool is_good_enough = rate_of(plan) <= rate_of(kept) * (1.0 + options_.hysteresis);
  if (is_good_enough && rate_of(kept) >= plain_rate) {
    plan.lengths.swap(kept.lengths);
    plan.expected_tokens = kept.expected_tokens;
    plan.seconds = kept.seconds;
  }
  lengths_.swap(kept.lengths);
}

/// Of several guesses the best is mostly too good to be true: what begins has to promise more.
bool DraftLengthChooser::is_worth_beginning(std::span<const DraftForecast> requests,
                                            const DraftPlan& plan) const {
  const bool has_begun = std::ranges::any_of(
      requests, [](const DraftForecast& request) { return request.previous > 0; });
  return has_begun || gain_of(requests, plan) >= options_.hysteresis * plan.decode_seconds;
}

/// Where a sequence does not draft nothing is learnt about it: from time to time, when what was
/// saved pays for it, somebody drafts, or all do.
void DraftLengthChooser::explore(std::span<const DraftForecast> requests, DraftPlan& plan) {
  if (options_.exploration == 0 || plan.exploration_seconds < 0) return;
  const bool is_plain = std::ranges::all_of(plan.lengths, [](auto length) { return length == 0; });
  if (!is_plain || !try_all(requests, plan)) probe(requests, plan);
}

/// As many drafts as pay if all goes as hoped: one step shows of every slot and of the clock what
/// probes would not for long. A trial is paid for when it is over: it cannot lose more than a few
/// steps' time, and what was accepted is saved again, so that those that pay follow one another.
bool DraftLengthChooser::try_all(std::span<const DraftForecast> requests, DraftPlan& plan) {
  find_hoped(requests, hoped_plan_);
  const double gain = gain_of(requests, hoped_plan_);
  if (!(gain > 0) || gain < options_.hysteresis * plan.decode_seconds) return false;
  plan.is_trial = true;
  plan.exploration_seconds -= hoped_plan_.seconds - plan.seconds;
  plan.lengths = hoped_plan_.lengths;
  evaluate(requests, plan);
  return true;
}

void DraftLengthChooser::find_hoped(std::span<const DraftForecast> requests, DraftPlan& plan) {
  hoped_.assign(requests.begin(), requests.end());
  for (DraftForecast& request : hoped_) request.survival = request.hoped;
  evaluate_plain(hoped_, plan);
  find_best(hoped_, plan);
}

/// The most promising one of those that do not draft.
void DraftLengthChooser::probe(std::span<const DraftForecast> requests, DraftPlan& plan) {
  double& credit = plan.exploration_seconds;
  std::size_t chosen = requests.size();
  for (std::size_t r = 0; r < requests.size(); ++r) {
    if (plan.lengths[r] > 0 || std::min(requests[r].limit, options_.max_length) == 0) continue;
    if (chosen == requests.size() || requests[r].hope > requests[chosen].hope) chosen = r;
  }
  if (chosen == requests.size()) {      // everyone drafts, or nobody can
    constexpr double kMaxSaved = 12.0;  // steps: for a few tries when somebody can again
    if (plan.decode_seconds > 0) credit = std::min(credit, kMaxSaved * plan.decode_seconds);
    return;
  }
  const double seconds_before = plan.seconds;
  const std::int32_t limit = std::min(requests[chosen].limit, options_.max_length);
  plan.lengths[chosen] = std::min(limit, options_.probe_length);
  evaluate(requests, plan);
  const double cost = plan.seconds - seconds_before;
  if (credit >= cost) {
    plan.probed = static_cast<std::int32_t>(chosen);
    credit -= cost;
    return;
  }
  plan.lengths[chosen] = 0;
  evaluate(requests, plan);
}

StepLoad DraftLengthChooser::load_of(std::span<const DraftForecast> requests,
                                     std::span<const std::int32_t> lengths) const {
  StepLoad load{.num_rows = others_.num_prompt_rows + others_.num_sequences};
  for (std::size_t r = 0; r < requests.size(); ++r) {
    const std::int32_t length = lengths[r];
    load.num_rows += 1 + length;
    load.num_draft_rows += length;
    load.longest_draft = std::max(load.longest_draft, length);
    load.kv_bytes += requests[r].kv_bytes + requests[r].row_kv_bytes * length;
    if (length == 0) continue;
    load.draft_kv_bytes += requests[r].draft_kv_bytes;
    ++load.num_drafting;
  }
  return load;
}

double DraftLengthChooser::plain_tokens(std::span<const DraftForecast> requests) const {
  return static_cast<double>(requests.size()) + others_.num_sequences;
}

void DraftLengthChooser::evaluate(std::span<const DraftForecast> requests, DraftPlan& plan) {
  plan.seconds = clock_.seconds(load_of(requests, plan.lengths));
  plan.expected_tokens = plain_tokens(requests);
  for (std::size_t r = 0; r < requests.size(); ++r) {
    for (std::int32_t i = 0; i < plan.lengths[r]; ++i) {
      plan.expected_tokens += requests[r].survival[static_cast<std::size_t>(i)];
    }
  }
}

std::int32_t draft_length_for_batch(std::span<const BatchDraftLength> lengths,
                                    std::int32_t otherwise, std::int32_t num_sequences) {
  for (const BatchDraftLength& entry : lengths) {
    if (entry.first <= num_sequences && num_sequences <= entry.last) return entry.num_tokens;
  }
  return otherwise;
}

}  // namespace winnow
