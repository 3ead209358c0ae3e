#include "engine/planned_batch.h"

#include <algorithm>

namespace winnow {

void PlannedBatch::build(std::span<const Chunk> chunks) {
  batch_.tokens.clear();
  batch_.sequences.clear();
  batch_.logit_rows.clear();
  batch_.selection_rows.clear();
  rows_.clear();
  for (const Chunk& chunk : chunks) {
    const Sequence& sequence = *chunk.sequence;
    const auto first_token = static_cast<std::int32_t>(batch_.tokens.size());
    const auto begin = sequence.tokens.begin() + sequence.num_computed;
    batch_.tokens.insert(batch_.tokens.end(), begin, begin + chunk.num_tokens);
    const std::vector<TokenId>& drafts = sequence.draft.tokens;
    batch_.tokens.insert(batch_.tokens.end(), drafts.begin(), drafts.end());
    batch_.sequences.push_back({.first_token = first_token,
                                .num_tokens = chunk.num_tokens + sequence.draft.size(),
                                .first_position = sequence.num_computed,
                                .block_table = sequence.table.blocks(),
                                .adapter = sequence.request->request.adapter.get()});
    for (std::int32_t i = 0; i < chunk.num_prompt_rows; ++i) {
      add_row(chunk, first_token, sequence.num_computed + i, /*is_prompt_row=*/true);
    }
    const bool wants_token = sequence.request->request.sampling.max_tokens > 0;
    if (chunk.is_sampled && wants_token) {
      add_row(chunk, first_token, chunk.end() - 1, /*is_prompt_row=*/false);
      for (std::int32_t i = 0; i < sequence.draft.size(); ++i) {
        batch_.logit_rows.push_back(batch_.logit_rows.back() + 1);
      }
      add_selections(sequence);
    }
  }
}

/// Of the rows just added: one draws the next output token, and one follows each draft.
void PlannedBatch::add_selections(const Sequence& sequence) {
  const std::int32_t num_rows = 1 + sequence.draft.size();
  const std::int32_t num_wanted =
      sequence.request->request.num_block_selections - sequence.num_output();
  const auto first = static_cast<std::int32_t>(batch_.logit_rows.size()) - num_rows;
  for (std::int32_t i = 0; i < std::min(num_rows, num_wanted); ++i) {
    batch_.selection_rows.push_back(first + i);
  }
}

void PlannedBatch::add_row(const Chunk& chunk, std::int32_t first_token, std::int32_t position,
                           bool is_prompt_row) {
  rows_.push_back({.chunk = &chunk,
                   .row = static_cast<std::int32_t>(batch_.logit_rows.size()),
                   .position = position,
                   .is_prompt_row = is_prompt_row});
  batch_.logit_rows.push_back(first_token + position - chunk.sequence->num_computed);
}

}  // namespace winnow
