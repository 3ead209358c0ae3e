// Which tokens a runner can draw where its logits are (ModelRunner::run_and_draw), and what it must
// know for that. What it draws is what sample_token() would.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/sample/sample_rules.h"
#include "engine/sample/sampler.h"
#include "model/model_runner.h"

namespace winnow {

struct PlannedDraw {
  ops::Draw draw;                            // row and mask are left to the caller
  const std::vector<TokenId>* banned_ids{};  // sorted, of the rules; null: none
};

/// How to draw the next token after `context` (prompt and output) for `choice`. None when the row
/// itself is needed: log-probabilities, penalties, biases, allowed ids, or a bad word of several
/// tokens that is about to be completed. A token filter always needs the row: the caller knows.
std::optional<PlannedDraw> plan_draw(const SampleRules& rules, std::uint32_t choice,
                                     std::span<const TokenId> context, std::int32_t num_output);

Sample sample_of(const ops::Drawn& drawn);

/// The masks that a runner holds, by content: most requests ban the same few tokens. Engine thread.
class TokenMasks {
 public:
  explicit TokenMasks(ModelRunner& runner);

  /// From here on any mask may be replaced.
  void begin_step() { ++step_; }
  /// The number of the mask that bans `ids`; none when every one is taken by others in this step.
  std::optional<std::int32_t> find(const std::vector<TokenId>& ids);

 private:
  struct Slot {
    std::vector<TokenId> ids;
    std::int64_t last_step = -1;
  };

  ModelRunner& runner_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> words_;
  std::int64_t step_ = 0;
};

}  // namespace winnow
