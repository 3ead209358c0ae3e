// Tokens of a drafter's call where the backend reads them: in place on CPUs, in one upload on a
// device. Unlike a step of the target (placed_batch.h), positions may lie beyond the block table:
// the block under draft has no slots.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/strong_id.h"
#include "ops/batch_view.h"
#include "ops/memory.h"
#include "ops/sample/sample.h"

namespace winnow {

class DraftBatch {
 public:
  explicit DraftBatch(std::shared_ptr<ops::Memory> memory) : memory_(std::move(memory)) {}

  struct Sequence {
    std::int32_t num_tokens = 0;
    std::int32_t first_position = 0;
    std::span<const BlockId> block_table;
  };
  /// `values`: one for each token of all sequences in turn, e.g. its id. Tables are copied.
  void place(std::span<const Sequence> sequences, std::span<const std::int32_t> values,
             std::span<const ops::Draw> draws = {});

  const ops::BatchView& view() const { return view_; }
  const std::int32_t* values() const { return values_; }
  const ops::Draw* draws() const { return draws_; }
  /// Tokens [first, first + count) for operations that read a batch token by token.
  ops::BatchView part(std::int32_t first, std::int32_t count) const;

  /// Changes when the arrays have moved. Until then their addresses depend on the counts of
  /// sequences, tokens and draws alone.
  std::int64_t generation() const { return generation_; }

 private:
  void list(std::span<const Sequence> sequences, std::span<const std::int32_t> values);
  const std::byte* make_room(std::int64_t num_bytes);

  std::shared_ptr<ops::Memory> memory_;
  std::vector<std::int32_t> integers_;  // positions, sequences, values, block tables
  std::vector<ops::SequenceSlice> slices_;
  std::vector<std::int64_t> table_at_;  // of a sequence in integers_
  std::vector<std::byte> staging_;
  ops::Array<std::byte> device_;
  ops::BatchView view_;
  const std::int32_t* values_ = nullptr;
  const ops::Draw* draws_ = nullptr;
  std::int64_t generation_ = 0;
};

}  // namespace winnow
