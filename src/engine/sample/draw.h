// One categorical draw by an exponential race: token t finishes at -log(u_t) / weight_t and the
// first wins, which it does with probability weight_t / Σ weights. u_t depends on (seed, choice,
// position, t) alone, so masks, batch and order of work cannot change what the others would draw,
// and a drafter that races with the same u_t mostly proposes what the target will choose
// (spec/speculative.md 4.6).
#pragma once

#include <cstdint>
#include <span>

#include "base/strong_id.h"
#include "engine/sample/candidates.h"

namespace winnow {

struct DrawKey {
  std::uint64_t seed = 0;
  std::uint32_t choice = 0;
  std::uint32_t position = 0;  // of the last token before the drawn one
  std::uint32_t slot = 0;      // of a drafted block whose anchor is at `position`; plain draws: 0
};

/// Uses of randomness at one position; each has its own numbers. Numbers shared by a proposal and
/// its test, or by a proposal and the residual, would bias the output (spec/speculative.md 4.6).
enum class DrawStream : std::uint32_t {
  kToken = 0,
  kTokenLowBits = 1,
  kProposal = 2,  // of a drafter that does not share the target's numbers
  kProposalLowBits = 3,
  kResidual = 4,  // the token after the accepted drafts
  kResidualLowBits = 5,
  kAcceptTest = 6,
};

/// The winner among candidates of weight > 0 (there is one). Their order does not matter. `stream`
/// is one that has low bits.
TokenId draw_candidate(std::span<const Candidate> candidates, const DrawKey& key,
                       DrawStream stream = DrawStream::kToken);

/// The same among all tokens, weights[t] being that of token t.
TokenId draw_weights(std::span<const float> weights, const DrawKey& key, DrawStream stream);
/// The same among `ids`, weights[j] being that of ids[j].
TokenId draw_weights(std::span<const float> weights, std::span<const TokenId> ids,
                     const DrawKey& key, DrawStream stream);

/// Uniform in (0, 1).
double draw_uniform(const DrawKey& key, DrawStream stream);

/// The same over a whole row with weights e^((logit - max) / T); those below `min_weight` do not
/// take part. `argmax` is a token of the highest logit.
struct RowDraw {
  std::span<const float> logits;
  float max = 0.0F;
  TokenId argmax = 0;
  float inverse_temperature = 1.0F;
  float min_weight = 0.0F;
};
TokenId draw_row(const RowDraw& row, const DrawKey& key);

}  // namespace winnow
