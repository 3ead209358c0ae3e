// A batch's tokens cut into runs of one sequence: what attention and the indexer hand to a thread.
#pragma once

#include <cstdint>
#include <span>

#include "ops/batch_view.h"
#include "ops/op_context.h"

namespace winnow::ops {

/// Tokens [first_token, first_token + num_tokens) of the batch, all of sequence `sequence`, the
/// first of them at position `first_position`.
struct TokenChunk {
  std::int32_t sequence = 0;
  std::int32_t first_token = 0;
  std::int32_t num_tokens = 0;
  std::int32_t first_position = 0;
};

/// Cuts each sequence's slice into chunks of `chunk_tokens`, the last one shorter; sequences
/// without tokens give none. The list lives in `scratch`.
std::span<const TokenChunk> split_batch(const BatchView& batch, std::int32_t chunk_tokens,
                                        Scratch& scratch);

}  // namespace winnow::ops
