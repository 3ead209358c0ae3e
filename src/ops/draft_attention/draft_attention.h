// Attention of the DSpark drafter's block (spec/speculative.md 2.3): the new tokens of a sequence
// are its block, at positions P … P + K - 1. The query at position p sees the cached drafter keys
// of positions max(0, p - (window - 1)) … P - 1, and all K keys of its own block, before and after
// it, as they are in `qkv` (never quantised). Query head n reads KV head n / (num_heads /
// num_kv_heads).
//
// Numerics: fp32, one running softmax per query and head as attention.h has it. Its parts: the
// cached keys block of the cache by block in ascending order, each cut to what the query sees (and
// left out when it sees nothing of it), then the block's own keys as one part. Per part: scores
// s_t = (Σ_d q·k, one chain of fused multiply-adds from 0 in ascending d) · scale, the maximum m,
// p_t = exp(s_t - m), the carried sum and output scaled by exp(m_old - m), then p_t and p_t · v_t
// added in ascending t, products by fused multiply-add; finally out = output / sum. exp is
// ops/fast_exp.h. Q is not cast, whatever the cache dtype.
//
// Slots that no query of the block sees are never read: they may be unwritten. K and V that any of
// them sees must be finite.
#pragma once

#include <cstdint>

#include "ops/batch_view.h"
#include "ops/cache_view.h"
#include "ops/qkv_insert/qkv_insert.h"

namespace winnow::ops {

/// Tokens of one block at most: the trained block is far smaller (7 in M3.1).
inline constexpr std::int32_t kMaxDraftBlock = 64;

struct DraftAttentionParams {
  const float* qkv = nullptr;  // [num_tokens][q heads, k heads, v heads][head_dim]: draft_heads
  AttentionShape shape;        // num_heads, num_kv_heads and head_dim are read
  float scale = 0.0F;          // head_dim^-0.5
  std::int32_t layer = 0;      // of the drafter
  std::int32_t window = 0;     // at least 1
  /// Block tables cover positions below first_position; num_tokens ≤ kMaxDraftBlock a sequence.
  BatchView batch;
  CacheView cache;       // drafter planes in fp32, bf16 or fp8
  float* out = nullptr;  // [num_tokens][num_heads][head_dim]
};

/// The first cached position that the query at `position` sees.
constexpr std::int32_t first_visible(std::int32_t position, std::int32_t window) {
  return position >= window ? position - window + 1 : 0;
}

}  // namespace winnow::ops
