// Sums in the 16 lanes that rms_norm.h and index_topk.h prescribe, by a half-warp.
#pragma once

namespace winnow::cuda {

/// Lane i + lane i + 8, then + 4, + 2, + 1. Addition commutes, so an exchange gives both sides the
/// same sum. Called by whole warps; every lane gets the sum of its half.
__device__ inline float join16(float lane_sum) {
  for (int half = 8; half > 0; half /= 2) {
    lane_sum += __shfl_xor_sync(0xFFFFFFFFU, lane_sum, half, 16);
  }
  return lane_sum;
}

/// Σ_d a[d]², d ascending within lane d mod 16; both halves of the warp compute the same. Values of
/// the next steps are read while the chain works on these.
__device__ inline float square_sum16(const float* a, int dim) {
  constexpr int kSteps = 16;
  const int lane = static_cast<int>(threadIdx.x % 16);
  const int num_whole = dim / (16 * kSteps);
  float sum = 0.0F;
  float next[kSteps];
  if (num_whole > 0) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) next[i] = a[i * 16 + lane];
  }
#pragma unroll 2
  for (int whole = 0; whole < num_whole; ++whole) {
    float now[kSteps];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) now[i] = next[i];
    if (whole + 1 < num_whole) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) next[i] = a[((whole + 1) * kSteps + i) * 16 + lane];
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) sum = fmaf(now[i], now[i], sum);
  }
  for (int d = num_whole * 16 * kSteps + lane; d < dim; d += 16) sum = fmaf(a[d], a[d], sum);
  return join16(sum);
}

}  // namespace winnow::cuda
