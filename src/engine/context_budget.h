// What it may cost to keep the drafter's context of sequences whose drafts bring nothing: a share
// of plain decoding's time, saved up while nobody is followed. A pure book-keeper.
#pragma once

#include <algorithm>

namespace winnow {

class ContextBudget {
 public:
  /// A step has taken `plain_seconds` for its decodes without drafts, which were expected to save
  /// `saved_seconds` more than keeping up took; less than nothing where they did not.
  void settle(double plain_seconds, double saved_seconds) {
    if (!(plain_seconds > 0)) return;  // prompts alone
    if (!has_begun_) balance_ = kFirstSteps * plain_seconds;
    has_begun_ = true;
    most_ = kMaxSteps * plain_seconds;
    balance_ = std::min(balance_ + kShare * plain_seconds, most_);
    const double kept = std::max(balance_, kCreditSteps * plain_seconds);
    balance_ = std::min(balance_ + saved_seconds, kept);
  }
  void spend(double seconds) { balance_ -= seconds; }
  [[nodiscard]] bool affords(double seconds) const { return balance_ >= seconds; }
  /// Whether so much is ever saved up.
  [[nodiscard]] bool can_hold(double seconds) const { return seconds <= most_; }
  void clear_debt() { balance_ = std::max(balance_, 0.0); }

 private:
  static constexpr double kShare = 0.003;
  // In steps of plain decoding: what a long quiet spell saves up; what there is at first, for a
  // trial of a few sequences; and what is kept of good times, so that one bad step does not end the
  // following of everybody.
  static constexpr double kMaxSteps = 50, kFirstSteps = 8, kCreditSteps = 2;
  bool has_begun_ = false;
  double balance_ = 0, most_ = 0;
};

}  // namespace winnow
