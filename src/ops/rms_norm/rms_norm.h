// out = x · rsqrt(mean(x²) + eps) · (offset + weight), row by row, fp32 (spec/model.md 3.3):
// MiniMax stores weights less one, Qwen3 whole ones. Σx² runs in 16 lanes (lane = column mod 16,
// fused multiply-add, ascending) joined pairwise: lane i with i+8, then i+4, i+2, i+1. inv = 1 /
// sqrt(Σx² / width + eps), each step one fp32 rounding; out = (x · inv) · (offset + weight).
#pragma once

#include <cstdint>

namespace winnow::ops {

struct RmsNormParams {
  const float* x = nullptr;       // [num_rows][width]
  const float* weight = nullptr;  // [width]
  float eps = 1e-6F;
  float offset = 1.0F;  // 0: the weight is the factor
  std::int64_t num_rows = 0;
  std::int64_t width = 0;
  float* out = nullptr;  // [num_rows][width]; may equal x
};

}  // namespace winnow::ops
