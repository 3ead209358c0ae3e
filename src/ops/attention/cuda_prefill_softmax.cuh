// Of attention for many tokens: the softmax of one warp's rows, the query heads of one token, in
// the layout of wgmma accumulators. Included by cuda_prefill_*.cu alone.
#pragma once

#include "ops/cuda/softmax_rows.cuh"

namespace winnow::cuda::attention_prefill {

/// The running softmax of a lane's two rows in one quarter. sums[a][r]: the part of key group a.
struct Quarter {
  float maximum[2];
  float sums[4][2];

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      maximum[r] = -INFINITY;
#pragma unroll
      for (int a = 0; a < 4; ++a) sums[a][r] = 0.0F;
    }
  }

  /// The whole row's sum, in every lane of the quad.
  __device__ __forceinline__ float sum(int r) const {
    return quad_sum(((sums[0][r] + sums[1][r]) + sums[2][r]) + sums[3][r]);
  }
};

/// Scores of a block → P as the A operand; rescales `outputs`. `seen` keys are visible.
template <CacheFormat F>
__device__ __forceinline__ void softmax(float (&scores)[64], int seen, float factor,
                                        Quarter& quarter, float (&outputs)[64],
                                        std::uint32_t (&p)[8][4]) {
  if (seen < kFastBlockTokens) hide_columns(scores, 0, seen);
  const RowPair best = row_maxima(scores);
  float scaled[2];
  float alpha[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float x = fmaxf(best[r], quarter.maximum[r]);
    scaled[r] = __fmul_rn(x, factor);
    alpha[r] = rescale(quarter.maximum[r], x, factor);
    quarter.maximum[r] = x;
  }
#pragma unroll
  for (int j = 0; j < 16; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) outputs[4 * j + i] = __fmul_rn(outputs[4 * j + i], alpha[i / 2]);
  }
#pragma unroll
  for (int a = 0; a < 4; ++a) {
    float sums[2] = {0.0F, 0.0F};
#pragma unroll
    for (int j = 4 * a; j < 4 * a + 4; ++j) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float x = probability(scores[4 * j + 2 * r], scaled[r], factor);
        const float y = probability(scores[4 * j + 2 * r + 1], scaled[r], factor);
        sums[r] = __fadd_rn(__fadd_rn(sums[r], x), y);
        p[j / 2][2 * (j % 2) + r] = pack_operands<F>(x, y);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r)
      quarter.sums[a][r] = __fmaf_rn(quarter.sums[a][r], alpha[r], sums[r]);
  }
}

}  // namespace winnow::cuda::attention_prefill
