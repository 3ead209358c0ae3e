// Which drafted tokens become output, and the token after them, such that the output has exactly
// the target's distribution. Source: spec/speculative.md 4.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/sample/sampler.h"
#include "engine/speculate/draft.h"
#include "model/model_runner.h"

namespace winnow {

/// One sequence's part of a verifying step.
struct VerifyInput {
  std::span<const float> logits;  // [num drafts + 1][vocabulary], raw; row i follows i drafts
  /// Instead of `logits`, where verifies_by_equality(): each row's token as a runner drew it.
  std::span<const ops::Drawn> drawn{};
  std::span<const TokenId> drafts;  // ids outside the vocabulary are never accepted
  std::span<const DraftDistribution> distributions;  // one per draft; none: all of them one-hot
  const SampleRules* rules = nullptr;
  std::int32_t num_output = 0;  // tokens generated so far, fewer than max_tokens

  std::size_t vocab_size() const { return logits.size() / (drafts.size() + 1); }
};

struct Verified {
  /// Not kOk: the row that the next token would have come from is broken or leaves no token;
  /// `tokens`, maybe none, precede it, and the run ends there with an error.
  SampleStatus status = SampleStatus::kOk;
  std::int32_t num_proposed = 0;  // drafts that could have been accepted: within max_tokens, before
                                  // the first that the grammar was seen to forbid
  std::int32_t num_accepted = 0;  // leading drafts that became output
  bool is_rejected = false;  // a draft was tested and refused; else the drafts or the run ended
  /// The accepted drafts and, unless the run ended or status says why not, one token more. An end
  /// token is the last. One whose text completes a stop string is for the caller to find: what
  /// follows it is dropped by keep_first().
  std::vector<SampledToken> tokens;

  /// Drops all but the first `num_tokens` tokens.
  void keep_first(std::size_t num_tokens);
};

/// Work space of one thread.
struct VerifyScratch {
  SampleScratch sample;
  std::vector<float> target;    // p of one row, as weights
  std::vector<float> residual;  // max(P p - q, 0)
};

/// Whether drafts are only compared with what sample_token() takes: its tokens, wherever they were
/// drawn, are then all that verify() reads of the rows.
bool verifies_by_equality(AcceptMethod method, const SampleRules& rules);

/// Verifies the drafts after `context` (prompt and output, the last being the anchor). Every row's
/// p is what sample_token() would draw from with the drafts before it as output: penalties, bad
/// words, min_tokens and grammar see them. `state` and `context` are moved along and are back where
/// they were on return: the caller accepts the tokens it emits.
///
/// Numbers are keyed by (seed, choice, anchor's position, slot, use): tests, proposals and the
/// final draw never share one, nor do two steps. Not the slot's own position: in block mode how
/// many are accepted depends on the numbers of later slots, which the next step would meet again.
/// kCoupled, and every greedy request, gives the tokens that sample_token() would give one by one;
/// so does any method without drafts.
void verify(AcceptMethod method, const VerifyInput& input, SampleState& state,
            std::vector<TokenId>& context, VerifyScratch& scratch, Verified& out);

}  // namespace winnow
