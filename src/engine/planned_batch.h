// A plan as the model runner wants it, and which row of logits is for what.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/scheduler.h"
#include "model/batch.h"

namespace winnow {

/// What to do with one row of logits.
struct RowUse {
  const Chunk* chunk = nullptr;
  std::int32_t row = 0;        // the first of 1 + Sequence::draft.size() where a token is drawn
  std::int32_t position = 0;   // of the token whose logits these are
  bool is_prompt_row = false;  // for prompt log-probabilities; else the next token is drawn
};

/// Reused from step to step, so that a steady state allocates nothing.
class PlannedBatch {
 public:
  /// Block tables are viewed, not copied: they must not change until the step has run.
  void build(std::span<const Chunk> chunks);

  const Batch& batch() const { return batch_; }
  std::span<const RowUse> rows() const { return rows_; }

 private:
  void add_selections(const Sequence& sequence);
  void add_row(const Chunk& chunk, std::int32_t first_token, std::int32_t position,
               bool is_prompt_row);

  Batch batch_;
  std::vector<RowUse> rows_;
};

}  // namespace winnow
