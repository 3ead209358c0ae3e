// What decode and prefill share of one expert: its entry in the list of work, its activation.
#pragma once

#include "ops/linear/cuda_fragments.cuh"
#include "ops/moe/cuda_fast.h"

namespace winnow::cuda::fast_moe {

/// What a sum over fragments is multiplied by.
__device__ __forceinline__ float sum_scale(const MatrixPart& part) {
  return part.scheme == QuantScheme::kNvfp4 ? part.matrix_scale * kNvfp4FragmentScale : 1.0F;
}

/// Without tokens yet.
__device__ __forceinline__ ActiveExpert active_expert(const DeviceMlp& mlp, int width) {
  return {.gate = mlp.gate.data,
          .up = mlp.up.data,
          .down = mlp.down.data,
          .gate_scale = sum_scale(mlp.gate),
          .up_scale = sum_scale(mlp.up),
          .down_scale = sum_scale(mlp.down),
          .first_slot = 0,
          .num_tokens = 0,
          .width = width,
          .gate_up_scheme = mlp.gate.scheme,
          .down_scheme = mlp.down.scheme};
}

__device__ __forceinline__ float exp2_approximately(float x) {
  float out;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
}

/// (u + 1) · g · sigmoid(alpha · g), as mlp.h but for a few ulps: it is rounded to bf16.
__device__ __forceinline__ float activate(float gate, float up, float alpha, float limit) {
  const float g = gate < limit ? gate : limit;
  const float capped = up < limit ? up : limit;
  const float u = capped > -limit ? capped : -limit;
  const float a = __fdividef(g, 1.0F + exp2_approximately(-1.4426950408889634F * (alpha * g)));
  return (u + 1.0F) * a;
}

}  // namespace winnow::cuda::fast_moe
