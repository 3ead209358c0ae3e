// Of the drafter's attention: the softmax of one warp's rows, the query heads of one token, in the
// layout of wgmma accumulators. Included by cuda_block.cu alone.
#pragma once

#include "ops/cuda/softmax_rows.cuh"

namespace winnow::cuda::draft_block {

/// Weights are relative to a reference that follows a row's maximum once that is 2^kSlack larger:
/// outputs are rarely rescaled, and no weight exceeds 2^kSlack.
inline constexpr float kSlack = 8.0F;

/// The running softmax of a lane's two rows in one quarter.
struct QuarterState {
  RowPair maximum;  // the reference
  RowPair sums;     // over this lane's keys

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      maximum[r] = kNegativeInfinity;
      sums[r] = 0.0F;
    }
  }

  /// The whole row's sum, in every lane of the quad.
  __device__ __forceinline__ float sum(int r) const { return quad_sum(sums[r]); }

  /// Scores of a page become weights; keys outside [first, end) are hidden. Returns what scales the
  /// outputs before.
  __device__ __forceinline__ RowPair weigh(float (&scores)[64], int first, int end, float factor) {
    if (first > 0 || end < kFastBlockTokens) hide_columns(scores, first, end);
    const RowPair best = row_maxima(scores);
    RowPair scaled;
    RowPair alpha;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float before = __fmul_rn(maximum[r], factor);
      const bool follows = __fmul_rn(best[r], factor) > __fadd_rn(before, kSlack);
      if (follows) maximum[r] = best[r];
      // Nothing seen yet: every weight is to be 0, not NaN.
      scaled[r] = maximum[r] == kNegativeInfinity ? 0.0F : __fmul_rn(maximum[r], factor);
      alpha[r] = follows ? ptx::ex2_approx_ftz(__fsub_rn(before, scaled[r])) : 1.0F;
    }
    float added[4] = {0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll
    for (int j = 0; j < 16; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& score = scores[4 * j + i];
        score = probability(score, scaled[i / 2], factor);
        added[i] = __fadd_rn(added[i], score);
      }
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sums[r] = __fmaf_rn(sums[r], alpha[r], __fadd_rn(added[2 * r], added[2 * r + 1]));
    }
    return alpha;
  }
};

/// Weights as the A operand of the next product.
__device__ __forceinline__ void pack(const float (&weights)[64], std::uint32_t (&p)[8][4]) {
#pragma unroll
  for (int j = 0; j < 16; ++j) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      p[j / 2][2 * (j % 2) + r] =
          pack_operands<CacheFormat::kFp8>(weights[4 * j + 2 * r], weights[4 * j + 2 * r + 1]);
    }
  }
}

}  // namespace winnow::cuda::draft_block
