// What the DSpark drafter does with projected heads (spec/speculative.md 2.1 and 2.3): norm and
// RoPE, then the context's K and V go to the drafter's planes of the cache, the block's stay where
// they are. The projections themselves are `linear`. `norm_offset` is rms_norm.h's offset.
//
// Numerics: norm as rms_norm.h over head_dim; RoPE as qkv_insert: of each pair (a, b) = (x[j],
// x[j + rotary_dim / 2]), fma(-b, sin, a · cos) and fma(a, sin, b · cos); V is left as it is. A
// token's result depends on its own row and position alone, so a context that is written in any
// chunks gives the same bytes.
#pragma once

#include "ops/batch_view.h"
#include "ops/cache_view.h"
#include "ops/qkv_insert/qkv_insert.h"

namespace winnow::ops {

/// K and V of tokens that the target has computed, for all layers of the drafter at once.
struct DraftInsertParams {
  const float* projected = nullptr;  // [num_tokens][num_layers][K heads, then V heads][head_dim]
  const float* k_norm = nullptr;     // [num_layers][head_dim]
  float norm_offset = 1.0F;
  float eps = 1e-6F;
  RopeTable rope;
  AttentionShape shape;  // num_kv_heads, head_dim and rotary_dim are read
  std::int32_t num_layers = 0;
  BatchView batch;
  CacheView cache;  // with drafter planes of this shape
};

/// The block's own heads, in place.
struct DraftHeadsParams {
  float* qkv = nullptr;           // [num_tokens][q heads, k heads, v heads][head_dim]
  const float* q_norm = nullptr;  // [head_dim]
  const float* k_norm = nullptr;  // [head_dim]
  float norm_offset = 1.0F;
  float eps = 1e-6F;
  RopeTable rope;
  AttentionShape shape;
  BatchView batch;
};

}  // namespace winnow::ops
