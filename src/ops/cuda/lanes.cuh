// Sums in the 16 lanes that rms_norm.h and index_topk.h prescribe, by a half-warp.
#pragma once

namespace winnow::cuda {

/// Σ_d a[d] · b[d], d ascending within lane d mod 16, lanes joined pairwise. Called by whole warps;
/// both halves compute the same, every lane gets the sum.
__device__ inline float dot16(const float* a, const float* b, int dim) {
  const int lane = static_cast<int>(threadIdx.x % 16);
  float sum = 0.0F;
#pragma unroll 8
  for (int d = lane; d < dim; d += 16) sum = fmaf(a[d], b[d], sum);
  // Lane i + lane i + half: addition commutes, so the exchange gives both the same sum.
  for (int half = 8; half > 0; half /= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, half, 16);
  return sum;
}

}  // namespace winnow::cuda
