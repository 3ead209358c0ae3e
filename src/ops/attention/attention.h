// Softmax attention over cached K and V, sparse (over `blocks`) or dense (blocks == null: every
// block up to the query's own). Query head n reads KV head n / (num_heads / num_kv_heads) and that
// group's block list. Keys t > p are masked (spec/model.md 3.9).
//
// Numerics: fp32. Blocks in ascending order; per block: scores s_t = (Σ_d q·k, one chain of
// fused multiply-adds from 0 in ascending d) · scale,
// block maximum, p_t = exp(s_t - m) with m the running maximum after this block, the sum and each
// output dim accumulated in ascending t by fused multiply-add after scaling the carried sum and
// output by exp(m_old - m); finally out = output / sum. exp is ops/fast_exp.h, the same polynomial
// on every backend. Unwritten slots are never read.
#pragma once

#include <cstdint>

#include "ops/qkv_insert/qkv_insert.h"

namespace winnow::ops {

struct AttentionParams {
  const float* q = nullptr;  // [num_tokens][num_heads][head_dim]
  AttentionShape shape;
  float scale = 0.0F;  // head_dim^-0.5
  std::int32_t layer = 0;
  BatchView batch;
  CacheView cache;
  const std::int32_t* blocks = nullptr;  // [num_tokens][num_index_heads][top_k_blocks], or null
  float* out = nullptr;                  // [num_tokens][num_heads][head_dim]
};

}  // namespace winnow::ops
