// Acceptance by decree, for measuring speed at a given acceptance length: drafts are accepted at
// set rates whatever the target says, so the text means nothing. Only configurations that allow
// benchmarks get here (speculative_config.h). Source: spec/speculative.md 5.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/speculate/verify.h"

namespace winnow {

class SyntheticAcceptance {
 public:
  /// rates[i]: the share of steps that accept more than i drafts. Throws Error{kInvalidArgument}
  /// for rates outside [0, 1] or rising ones, and for none.
  explicit SyntheticAcceptance(std::span<const double> rates);
  /// The rates of least variance that give this mean number of tokens per step, the one after the
  /// drafts included. Throws Error{kInvalidArgument} for a length outside [1, num_drafts + 1].
  static SyntheticAcceptance of_length(double length, std::int32_t num_drafts);

  std::span<const double> rates() const { return rates_; }
  /// Of acceptance of slot i where all before were accepted; 0 beyond the rates.
  double conditional_rate(std::int32_t slot) const;

 private:
  std::vector<double> rates_;
};

/// As verify() but for the test. Drafts outside the vocabulary or masked (by a grammar, say) are
/// refused; after a refusal the token is the target's highest when greedy, else of the residual.
/// All rows have been computed by the caller as in earnest.
void verify_synthetic(const SyntheticAcceptance& acceptance, const VerifyInput& input,
                      SampleState& state, std::vector<TokenId>& context, VerifyScratch& scratch,
                      Verified& out);

}  // namespace winnow
