// What a drafter hands to verification: proposed tokens, and the very distributions they were drawn
// from. Source: spec/speculative.md 4.1, 4.3, 4.6.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/sample/draw.h"
#include "engine/sample/sample_rules.h"

namespace winnow {

/// How drafts become output. Greedy requests (temperature 0) are verified in one way whatever the
/// method: a draft stays while it equals the target's choice.
enum class AcceptMethod {
  kStandard,  // each draft is tested alone (Leviathan et al.)
  kBlock,     // the drafts are tested jointly: accepts at least as many (arXiv 2403.10444)
  kCoupled,   // a draft stays while it equals what sample_token() takes: output as without drafts
};

/// q of one slot, not owned: weights[j] / total is the probability of token ids[j], or of token j
/// where `ids` is empty. No weights: the token was chosen without chance (one-hot q).
struct DraftDistribution {
  std::span<const float> weights;
  std::span<const TokenId> ids;  // ascending, unique
  double total = 0;              // of the weights; not positive and finite: the slot is not used

  bool is_one_hot() const { return weights.empty(); }
  bool is_usable() const;
  /// q(token), `drafted` being the token of this slot; 0 for ids outside the vocabulary.
  double probability(TokenId token, TokenId drafted) const;
};

/// Owns one slot's distribution. Reused from step to step.
struct DraftWeights {
  std::vector<float> weights;
  std::vector<TokenId> ids;
  double total = 0;

  DraftDistribution view() const { return {.weights = weights, .ids = ids, .total = total}; }
};

/// q = softmax(logits / T) with the request's temperature and nothing else, over the vocabulary or,
/// where `ids` is not empty, over those tokens (logits[j] is that of ids[j]). False when a logit is
/// NaN or +inf or none is finite: the slot and all after it are not drafted. Not for greedy
/// requests.
[[nodiscard]] bool fill_draft_weights(std::span<const float> logits, std::span<const TokenId> ids,
                                      const SampleRules& rules, DraftWeights& out);

/// A token drawn from q for slot `anchor.slot` (0-based) of the block whose anchor is at
/// anchor.position. Coupled drafts race with the numbers of the target's own draw at their
/// position, which makes them agree most often; others have numbers that no test and no residual
/// sees.
TokenId propose_token(const DraftDistribution& q, const DrawKey& anchor, AcceptMethod method);

}  // namespace winnow
