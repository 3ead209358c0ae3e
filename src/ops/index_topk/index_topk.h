// Block selection of MSA (spec/model.md 3.7, 3.8): score[g][b] = max over keys t of block b, t ≤ p,
// of Σ_d index_q[g][d] · index_k[t][d]; the top_k highest blocks are kept, forced blocks (local,
// init) first; equal scores → lower block; NaN counts as -inf. Dot products run in 16 lanes as in
// rms_norm.h.
#pragma once

#include <cstdint>

#include "ops/qkv_insert/qkv_insert.h"

namespace winnow::ops {

struct IndexTopkParams {
  const float* index_q = nullptr;  // [num_tokens][num_index_heads][index_head_dim]
  AttentionShape shape;
  std::int32_t layer = 0;
  BatchView batch;
  CacheView cache;
  /// out [num_tokens][num_index_heads][top_k_blocks]: logical block numbers of the sequence in
  /// ascending order, then -1. Ascending because attention sums blocks in that order.
  std::int32_t* blocks = nullptr;
};

}  // namespace winnow::ops
