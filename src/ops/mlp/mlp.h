// y (+)= Wdown · ((u + offset) · g · sigmoid(alpha · g)), g = min(Wgate·h, limit), u = clamp(Wup·h,
// ±limit) (spec/model.md 3.11): the dense MLP, the shared expert and each routed expert. With alpha
// 1, offset 0 and an infinite limit it is Qwen3's silu(gate) · up.
//
// Numerics: both products as in linear.h. Per element, one fp32 rounding a step:
// g = gate < limit ? gate : limit; u = up < limit ? up : limit, then u > -limit ? u : -limit;
// a = g / (1 + fast_exp(-(alpha · g))); activation = (u + offset) · a.
#pragma once

#include <cstdint>

#include "ops/linear/linear.h"
#include "ops/lora/lora.h"

namespace winnow::ops {

struct SwigluConstants {
  float alpha = 0.0F;
  float limit = 0.0F;   // above 0; may be infinite
  float offset = 1.0F;  // added to up
};

/// One feed-forward block. gate_up holds gate's rows, then up's.
struct MlpWeights {
  const PackedMatrix* gate_up = nullptr;  // [2 · width][hidden]
  const PackedMatrix* down = nullptr;     // [hidden][width]
};

struct MlpParams {
  const float* h = nullptr;  // [num_tokens][hidden]
  std::int64_t num_tokens = 0;
  MlpWeights weights;
  SwigluConstants constants;
  float* y = nullptr;  // [num_tokens][hidden]
  bool accumulate = false;
  /// Of the tokens: added to gate_up's rows before the activation, to y after `down` (lora.h);
  /// null: none.
  const LoraRows<LoraMlp>* lora = nullptr;
};

}  // namespace winnow::ops
