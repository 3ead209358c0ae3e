// Of the drafter's attention: the softmax of one warp's rows, the query heads of one token, in the
// layout of wgmma accumulators. Included by cuda_block.cu alone.
#pragma once

#include "ops/cuda/cache_fragments.cuh"

namespace winnow::cuda::draft_block {

/// The running softmax of a lane's two rows in one quarter.
struct QuarterState {
  float maximum[2];
  float sums[2];  // over this lane's keys

  __device__ __forceinline__ void reset() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      maximum[r] = kNegativeInfinity;
      sums[r] = 0.0F;
    }
  }

  /// The whole row's sum, in every lane of the quad.
  __device__ __forceinline__ float sum(int r) const {
    const float x = sums[r] + __shfl_xor_sync(~0U, sums[r], 1);
    return x + __shfl_xor_sync(~0U, x, 2);
  }

  /// Scores of a page become weights; keys outside [first, end) are hidden. `alpha` scales
  /// what was.
  __device__ __forceinline__ void weigh(float (&scores)[64], int first, int end, float factor,
                                        float (&alpha)[2]) {
    if (first > 0 || end < kFastBlockTokens) hide(scores, first, end);
    float best[4] = {scores[0], scores[1], scores[2], scores[3]};
#pragma unroll
    for (int j = 1; j < 16; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) best[i] = fmaxf(best[i], scores[4 * j + i]);
    }
    float scaled[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float x = fmaxf(best[2 * r], best[2 * r + 1]);
      x = fmaxf(x, __shfl_xor_sync(~0U, x, 1));
      x = fmaxf(x, __shfl_xor_sync(~0U, x, 2));
      x = fmaxf(x, maximum[r]);
      // Nothing seen yet: every weight is to be 0, not NaN.
      scaled[r] = x == kNegativeInfinity ? 0.0F : __fmul_rn(x, factor);
      alpha[r] = probability(maximum[r], scaled[r], factor);
      maximum[r] = x;
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
  }

 private:
  __device__ __forceinline__ static void hide(float (&scores)[64], int first, int end) {
    const int own = 2 * (static_cast<int>(threadIdx.x) & 3);
#pragma unroll
    for (int j = 0; j < 16; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = 8 * j + own + i % 2;
        if (key < first || key >= end) scores[4 * j + i] = kNegativeInfinity;
      }
    }
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

/// Quarters that one CTA merged so far: maxima and sums in registers, outputs in the result itself,
/// where each belongs to one lane.
struct Merged {
  MergedSoftmax rows[2];
  bool is_empty = true;

  /// Adds a quarter and clears it; the last one also normalises. `out`: the token's first head.
  __device__ __forceinline__ void add(QuarterState& state, float (&outputs)[64], float factor,
                                      bool is_last, float* out, int group, bool is_token) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool is_seen = state.maximum[r] > kNegativeInfinity;
      float a, b;
      rows[r].add(state.maximum[r], state.sum(r), factor, a, b);
      const float normalizer = is_last ? rows[r].normalizer() : 1.0F;
      const int head = lane / 4 + 8 * r;
      const bool is_row = is_token && head < group;
      float* const row = out + head * kFastDim + 2 * (lane & 3);
      float2 before[16];
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        before[j] = is_row && !is_empty ? *reinterpret_cast<const float2*>(row + 8 * j)
                                        : make_float2(0.0F, 0.0F);
      }
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        float& x = outputs[4 * j + 2 * r];
        float& y = outputs[4 * j + 2 * r + 1];
        float2 total = before[j];
        if (is_seen) {
          total = {__fmaf_rn(x, b, __fmul_rn(total.x, a)), __fmaf_rn(y, b, __fmul_rn(total.y, a))};
        }
        total = {__fmul_rn(total.x, normalizer), __fmul_rn(total.y, normalizer)};
        x = 0.0F;
        y = 0.0F;
        if (is_row) *reinterpret_cast<float2*>(row + 8 * j) = total;
      }
    }
    is_empty = false;
    state.reset();
  }
};

}  // namespace winnow::cuda::draft_block
