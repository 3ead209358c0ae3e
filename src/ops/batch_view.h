// The tokens of one step as operations see them: pointers and shapes, no requests.
#pragma once

#include <cstdint>
#include <span>

namespace winnow::ops {

/// One sequence's part of a step: tokens [first_token, first_token + num_tokens) of the batch stand
/// at positions [first_position, first_position + num_tokens) of its context.
struct SequenceSlice {
  std::int32_t first_token = 0;
  std::int32_t num_tokens = 0;  // 0 is legal and skipped
  std::int32_t first_position = 0;
  /// Row of the KV pool for each block of the context, covering every position of this slice.
  const std::int32_t* block_table = nullptr;
};

/// On a device every pointer below, `sequences.data()` and block tables included, is a device
/// pointer; the counts are host values that bound a launch.
struct BatchView {
  std::int32_t num_tokens = 0;
  const std::int32_t* positions = nullptr;    // [num_tokens]
  const std::int32_t* sequence_of = nullptr;  // [num_tokens] index into `sequences`
  std::span<const SequenceSlice> sequences;
  std::int32_t max_slice_tokens = 0;  // of any sequence
  std::int32_t num_positions = 0;     // one above the highest position of the batch
};

}  // namespace winnow::ops
