#include "engine/speculate/step_correction.h"

#include <algorithm>
#include <bit>

namespace winnow {
namespace {

constexpr double kWeight = 0.05;      // of an observation among many
constexpr double kMaxChange = 2.0;    // what delays a step further is mostly none of its own doing
constexpr double kFirstChange = 4.0;  // nothing is known yet
// Steps with drafts may be rare: then the old ones say little of how the machine is now.
constexpr std::int64_t kStaleSteps = 64;
constexpr double kStaleWeight = 0.25;

}  // namespace

void StepCorrection::Ratio::observe(double expected, double seen, std::int64_t step) {
  if (!(expected > 0)) return;
  const double change = is_known() ? kMaxChange : kFirstChange;
  const double ratio = std::clamp(seen / expected, value_ / change, value_ * change);
  double weight = std::max(kWeight, 1.0 / static_cast<double>(num_seen_ + 1));
  if (step - last_step_ > kStaleSteps) weight = std::max(weight, kStaleWeight);
  value_ += weight * (ratio - value_);
  ++num_seen_;
  last_step_ = step;
}

std::size_t StepCorrection::size_of(std::int32_t num_sequences) {
  const auto size =
      static_cast<int>(std::bit_width(static_cast<std::uint32_t>(std::max(num_sequences, 1) - 1)));
  return static_cast<std::size_t>(std::min(size, kNumSizes - 1));
}

StepFactors StepCorrection::factors(std::int32_t num_sequences) const {
  const Ratios& own = sizes_[size_of(num_sequences)];
  StepFactors factors{.context_seconds = context_seconds_};
  factors.plain = own.plain.is_known() ? own.plain.value() : any_.plain.value();
  factors.draft = own.draft.is_known() ? own.draft.value() : any_.draft.value();
  factors.verify = own.verify.is_known() ? own.verify.value() : factors.plain;
  if (!own.verify.is_known() && any_.verify.is_known() && any_.plain.is_known()) {
    factors.verify *= any_.verify.value() / any_.plain.value();
  }
  return factors;
}

void StepCorrection::observe(std::int32_t num_sequences, bool has_drafts, const StepTimes& expected,
                             const StepTimes& seen) {
  ++num_steps_;
  // What a device has left to do of the context delays what comes next.
  StepTimes own = expected;
  own.target += std::max(expected.context - seen.context, 0.0);
  observe(sizes_[size_of(num_sequences)], has_drafts, own, seen, num_steps_);
  observe(any_, has_drafts, own, seen, num_steps_);
  if (!(expected.context > 0)) return;
  const double most = kMaxChange * (expected.context + context_seconds_);
  const double beyond = std::clamp(seen.context - expected.context, 0.0, most);
  context_seconds_ += kWeight * (beyond - context_seconds_);
}

void StepCorrection::observe(Ratios& ratios, bool has_drafts, const StepTimes& expected,
                             const StepTimes& seen, std::int64_t step) {
  Ratio& target = has_drafts ? ratios.verify : ratios.plain;
  target.observe(expected.target, seen.target, step);
  if (has_drafts) ratios.draft.observe(expected.draft, seen.draft, step);
}

}  // namespace winnow
