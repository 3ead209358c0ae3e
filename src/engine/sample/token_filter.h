// Which tokens may come next, as a grammar sees it. The server implements it over text/grammar; the
// sampler asks it before each draw and tells it what was chosen.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/strong_id.h"

namespace winnow {

/// State of one choice's output. Engine thread, or one lent to it for sampling or for masks; never
/// two at once. Methods must not throw: what cannot be compiled is refused before the request is
/// queued.
class TokenFilter {
 public:
  virtual ~TokenFilter() = default;

  /// Bit t % 32 of mask[t / 32] says whether token t may come next; `mask` has
  /// ceil(vocab_size / 32) words, all of which are written. False: every token may come, `mask` is
  /// untouched (free text before the constrained part). End tokens are bits like all others.
  [[nodiscard]] virtual bool fill_mask(std::span<std::uint32_t> mask) = 0;

  /// Where the run may not end: the token that leads on to where it may. A model that would rather
  /// end gets there: the token's logit becomes that of the likeliest end token that the mask bars,
  /// if that is higher. None: logits stay what they are. Asked where fill_mask() would be.
  virtual std::optional<TokenId> end_detour() const { return std::nullopt; }

  /// The token was emitted. Tokens outside the mask never reach it.
  virtual void accept(TokenId token) = 0;

  /// Takes back the last `num_tokens` accepted ones: a drafted continuation was only tried.
  virtual void rollback(std::int32_t num_tokens) = 0;

  /// An independent copy in the same state, for each choice of a request.
  virtual std::unique_ptr<TokenFilter> clone() const = 0;
};

}  // namespace winnow
