#include "ops/token_chunks.h"

#include <algorithm>

namespace winnow::ops {

std::span<const TokenChunk> split_batch(const BatchView& batch, std::int32_t chunk_tokens,
                                        Scratch& scratch) {
  std::int64_t num_chunks = 0;
  for (const SequenceSlice& slice : batch.sequences) {
    num_chunks += (std::int64_t{slice.num_tokens} + chunk_tokens - 1) / chunk_tokens;
  }
  TokenChunk* const chunks = scratch.take_array<TokenChunk>(num_chunks);
  TokenChunk* next = chunks;
  for (std::size_t s = 0; s < batch.sequences.size(); ++s) {
    const SequenceSlice& slice = batch.sequences[s];
    for (std::int32_t first = 0; first < slice.num_tokens; first += chunk_tokens) {
      *next++ = {.sequence = static_cast<std::int32_t>(s),
                 .first_token = slice.first_token + first,
                 .num_tokens = std::min(chunk_tokens, slice.num_tokens - first),
                 .first_position = slice.first_position + first};
    }
  }
  return {chunks, static_cast<std::size_t>(num_chunks)};
}

}  // namespace winnow::ops
