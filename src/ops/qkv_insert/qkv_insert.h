// One call from a layer's normed input to what attention reads: the fused projection
// [q; k; v; index_q; index_k] · h, per-head (1 + w) norm of q, k, index_q, index_k, RoPE on the
// first rotary_dim dims (half-split pairing), then K, V and index-K quantised into the cache row of
// each token's position (spec/model.md 3.4–3.6, 4.2). V is neither normed nor rotated.
//
// Numerics: the projection as in linear.h, each head's norm as in rms_norm.h. With (a, b) a rotated
// pair: a' = fma(-b, sin, a · cos), b' = fma(a, sin, b · cos). q and index_q are returned as
// floats, cast to E4M3 and back where casts_query() of their plane says so.
#pragma once

#include <cstdint>

#include "ops/batch_view.h"
#include "ops/cache_view.h"
#include "ops/linear/linear.h"
#include "ops/lora/lora.h"

namespace winnow::ops {

struct AttentionShape {
  std::int32_t num_heads = 0;
  std::int32_t num_kv_heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t rotary_dim = 0;
  std::int32_t num_index_heads = 0;  // 0: a dense layer
  std::int32_t index_head_dim = 0;
  std::int32_t top_k_blocks = 0;
  std::int32_t local_blocks = 1;
  std::int32_t init_blocks = 0;
};

/// cos and sin of position · inv_freq[j], fp32: [max_positions][rotary_dim / 2] each. The angle is
/// the fp32 product; inv_freq[j] = 1 / theta^(2j / rotary_dim), both steps rounded to fp32.
struct RopeTable {
  const float* cos = nullptr;
  const float* sin = nullptr;
};

struct QkvInsertParams {
  const float* h = nullptr;         // [num_tokens][hidden], normed
  const PackedMatrix* w = nullptr;  // rows: q, k, v, then index_q, index_k in a sparse layer
  const float* q_norm = nullptr;    // [head_dim]
  const float* k_norm = nullptr;
  const float* index_q_norm = nullptr;  // [index_head_dim], null in a dense layer
  const float* index_k_norm = nullptr;
  float eps = 1e-6F;
  RopeTable rope;
  AttentionShape shape;
  std::int32_t layer = 0;
  BatchView batch;
  CacheView cache;
  float* q = nullptr;  // out [num_tokens][num_heads][head_dim]
  float* index_q =
      nullptr;  // out [num_tokens][num_index_heads][index_head_dim], null in a dense layer
  /// Of the batch's tokens, added to the projection (lora.h) before norm and RoPE; null: none.
  const LoraRows<LoraSite>* lora = nullptr;
};

}  // namespace winnow::ops
