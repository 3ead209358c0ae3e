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
};

/// Uses of randomness at one position; each has its own numbers.
enum class DrawStream : std::uint32_t { kToken = 0, kTokenLowBits = 1 };

/// The winner among candidates of weight > 0 (there is one). Their order does not matter.
TokenId draw_candidate(std::span<const Candidate> candidates, const DrawKey& key);

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
