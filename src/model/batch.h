// One step's work as the engine hands it to the model: tokens, where they stand, and which of them
// need logits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/strong_id.h"

namespace winnow {

class ModelAdapter;

/// Consecutive new tokens of one sequence. Its block table already covers their positions.
struct BatchSequence {
  std::int32_t first_token = 0;     // index into Batch::tokens
  std::int32_t num_tokens = 0;      // decode: 1; a prefill chunk: more
  std::int32_t first_position = 0;  // tokens of this sequence already in the cache
  std::span<const BlockId> block_table;
  /// Added to the model for this sequence; null: the model as it is. Of this runner, and alive
  /// until the step is done. What the cache holds of a sequence is true of its adapter alone.
  const ModelAdapter* adapter = nullptr;
};

struct Batch {
  std::vector<TokenId> tokens;
  std::vector<BatchSequence> sequences;
  /// Indices into `tokens`, ascending: the rows of logits the step returns.
  std::vector<std::int32_t> logit_rows;
  /// Indices into `logit_rows`, ascending: rows for which the step also tells what blocks their
  /// tokens read (ModelRunner::selections()).
  std::vector<std::int32_t> selection_rows{};
};

}  // namespace winnow
