// Router, routed experts and the shared expert of one layer (spec/model.md 3.12, 3.13):
// s = sigmoid(Wg·h); the top_k highest of s + bias (ties: lower id); w = s[chosen] / Σ s[chosen];
// y += shared(h) + routed_scale · Σ_e w_e · expert_e(h), e ascending, fp32.
//
// Numerics: logits as in linear.h, s = fast_sigmoid (fast_exp.h), s + bias one addition (a NaN
// counts as -inf), Σ s[chosen] from 0 in ascending id, w one division. Per output element:
// r = fma(w_e, expert_e, r) from 0 in ascending e; y += fma(routed_scale, r, shared), where shared
// is 0 without a shared expert.
#pragma once

#include <cstdint>
#include <span>

#include "ops/mlp/mlp.h"

namespace winnow::ops {

/// A backend's own view of one layer's experts, made once when they are packed.
class ExpertTable {
 public:
  virtual ~ExpertTable() = default;
};

struct MoeParams {
  const float* h = nullptr;  // [num_tokens][hidden]
  std::int64_t num_tokens = 0;
  const PackedMatrix* router = nullptr;  // [num_experts][hidden], F32
  const float* router_bias = nullptr;    // [num_experts]
  std::span<const MlpWeights> experts;
  MlpWeights shared;                   // gate_up null: none
  const ExpertTable* table = nullptr;  // of `experts` and `shared`, where the backend makes one
  std::int32_t top_k = 0;
  float routed_scale = 1.0F;
  SwigluConstants constants;
  float* y = nullptr;                      // [num_tokens][hidden], added to
  std::int32_t* chosen_experts = nullptr;  // out [num_tokens][top_k], ascending id; may be null
  float* chosen_weights = nullptr;         // out, same order; may be null
  /// Of the tokens: added inside each expert, as in mlp.h, before the weighted sum; the router has
  /// none. Null: none.
  const LoraRows<LoraMoe>* lora = nullptr;
};

}  // namespace winnow::ops
