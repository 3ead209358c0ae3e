// A block drafter: proposes the next K tokens of a sequence from what the target computed for its
// committed ones (spec/speculative.md 2 and 3). It changes how fast tokens come, never which: the
// target decides.
//
//   decoder.run(batch, …)                      // with DecoderOptions::captured_layers
//   drafter.insert_context(…)                  // streams of committed rows → K, V in the cache row
//   drafter.draft(…)                           // one pass: base logits and hidden states, K a row
//   for (slot = 0; slot < K; ++slot) {
//     drafter.step(…, slot, previous, …)       // bias of the token before; then the caller draws
//   }
//
// Threads: the engine thread. Every result of one sequence depends on that sequence alone, to the
// bit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/strong_id.h"
#include "formats/cache_row.h"
#include "ops/cache_view.h"
#include "ops/op_context.h"
#include "ops/sample/sample.h"

namespace winnow {

/// Committed tokens of one sequence whose streams lie in rows [first_row, first_row + num_tokens).
struct ContextSlice {
  std::int32_t first_row = 0;
  std::int32_t num_tokens = 0;
  std::int32_t first_position = 0;
  std::span<const BlockId> block_table;  // covers the positions
};

/// One sequence to draft for. `position` is where `anchor` stands: the token that was chosen last
/// and that the target has not seen. The cache holds the context of all positions before it that
/// the window reaches.
struct DraftRequest {
  TokenId anchor = 0;
  std::int32_t position = 0;
  std::span<const BlockId> block_table;  // covers the positions before `position`
};

/// What is wanted of a block whose tokens the drafter draws itself: [num_tokens][requests] each.
struct BlockDraws {
  std::span<const ops::Draw> draws;  // of slot i: position is the request's plus i; row is not read
  std::span<ops::Drawn> drawn;       // after one that is not kOk, a request's tokens mean nothing
  std::span<float> confidence{};     // or empty; as step() has it
};

class Drafter {
 public:
  virtual ~Drafter() = default;

  /// The layers of the target after which its residual stream is wanted, ascending.
  virtual std::span<const std::int32_t> target_layers() const = 0;
  /// The most tokens of one draft.
  virtual std::int32_t max_draft_tokens() const = 0;
  /// Context that a draft at position P reads: positions from P - window() + 1 on.
  virtual std::int32_t window() const = 0;
  /// What the cache row must hold for it, in `dtype` (nvfp4 is refused: Error{kUnsupported}).
  virtual CacheRowShape::Drafter cache_shape(CacheDType dtype) const = 0;
  virtual bool has_confidence() const = 0;
  virtual std::int64_t weight_bytes() const = 0;
  /// Of the weights: context in the cache is of no use to another drafter.
  virtual std::uint64_t fingerprint() const = 0;

  /// Writes the context of committed tokens: the same bytes for the same token however they are
  /// split into calls. `streams`: one array [rows][hidden] in the backend's memory per layer of
  /// target_layers(); slices in ascending first_row.
  virtual void insert_context(const ops::OpContext& context, std::span<const float* const> streams,
                              std::span<const ContextSlice> slices,
                              const ops::CacheView& cache) = 0;

  /// Runs the block of every request: its anchor and num_tokens - 1 tokens not known yet. Throws
  /// Error{kInternal} on requests that do not fit.
  virtual void draft(const ops::OpContext& context, std::span<const DraftRequest> requests,
                     std::int32_t num_tokens, const ops::CacheView& cache) = 0;

  // Of the last draft, in the backend's memory.
  /// [requests][num_tokens][vocab_size]: slot i of a request scores the token at position + 1 + i.
  virtual float* logits() = 0;
  /// [requests][num_tokens][hidden], after the final norm.
  virtual const float* hidden() const = 0;

  /// Adds to each request's logits of `slot` what the token before it (`previous`, [requests]; the
  /// anchor for slot 0) says about them. Slots in ascending order, each once. `confidence`: empty,
  /// or [requests], where the head's estimate that the slot's draft is accepted is written.
  virtual void step(const ops::OpContext& context, std::int32_t slot,
                    std::span<const TokenId> previous, std::span<float> confidence) = 0;

  /// Whether the backend draws tokens where the logits are.
  virtual bool can_draw() const { return false; }
  /// draft() and every step(), each slot's token drawn from its logits before the next slot reads
  /// it: nothing but the tokens comes back. Only if can_draw().
  virtual void draft_and_draw(const ops::OpContext& /*context*/,
                              std::span<const DraftRequest> /*requests*/,
                              std::int32_t /*num_tokens*/, const ops::CacheView& /*cache*/,
                              const BlockDraws& /*outputs*/) {}
};

}  // namespace winnow
