// Of attention for many tokens: the softmax of one warp's rows, the query heads of one token, in
// the layout of wgmma accumulators. Included by cuda_prefill.cu alone.
#pragma once

#include "ops/cuda/cache_fragments.cuh"

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
    float x = ((sums[0][r] + sums[1][r]) + sums[2][r]) + sums[3][r];
    x += __shfl_xor_sync(~0U, x, 1);
    return x + __shfl_xor_sync(~0U, x, 2);
  }
};

/// Scores of a block → P as the A operand; rescales `outputs`. `seen` keys are visible.
template <CacheFormat F>
__device__ __forceinline__ void softmax(float (&scores)[64], int seen, float factor,
                                        Quarter& quarter, float (&outputs)[64],
                                        std::uint32_t (&p)[8][4]) {
  if (seen < kFastBlockTokens) {
    const int first = 2 * (static_cast<int>(threadIdx.x) & 3);
#pragma unroll
    for (int j = 0; j < 16; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (8 * j + first + (i & 1) >= seen) scores[4 * j + i] = -INFINITY;
      }
    }
  }
  float best[4] = {scores[0], scores[1], scores[2], scores[3]};
#pragma unroll
  for (int j = 1; j < 16; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) best[i] = fmaxf(best[i], scores[4 * j + i]);
  }
  float scaled[2];
  float alpha[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float x = fmaxf(best[2 * r], best[2 * r + 1]);
    x = fmaxf(x, __shfl_xor_sync(~0U, x, 1));
    x = fmaxf(x, __shfl_xor_sync(~0U, x, 2));
    x = fmaxf(x, quarter.maximum[r]);
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

/// One token's merged quarters: maxima and sums in registers, outputs in the result itself, where
/// each belongs to one lane.
struct Merged {
  MergedSoftmax rows[2];
  bool is_empty = true;

  /// What was merged so far: read while the last block's outputs are on their way. `out`: the
  /// token's first head of the group.
  __device__ __forceinline__ void read(const float* out, int group, float (&before)[64]) const {
    const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int head = lane / 4 + 8 * r;
      const bool is_there = !is_empty && head < group;
      const float* const row = out + head * kFastDim + 2 * (lane & 3);
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        const float2 pair =
            is_there ? *reinterpret_cast<const float2*>(row + 8 * j) : make_float2(0.0F, 0.0F);
        before[4 * j + 2 * r] = pair.x;
        before[4 * j + 2 * r + 1] = pair.y;
      }
    }
  }

  /// Adds a quarter and clears it; the last one also normalises.
  __device__ __forceinline__ void add(Quarter& quarter, float (&outputs)[64], float factor,
                                      const float (&before)[64], bool is_last, float* out,
                                      int group) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float a = 0;
      float b = 0;
      rows[r].add(quarter.maximum[r], quarter.sum(r), factor, a, b);
      const float normalizer = is_last ? rows[r].normalizer() : 1.0F;
      const int head = lane / 4 + 8 * r;
      float* const row = out + head * kFastDim + 2 * (lane & 3);
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        float2 total;
        float& x = outputs[4 * j + 2 * r];
        float& y = outputs[4 * j + 2 * r + 1];
        total.x = __fmul_rn(__fmaf_rn(x, b, __fmul_rn(before[4 * j + 2 * r], a)), normalizer);
        total.y = __fmul_rn(__fmaf_rn(y, b, __fmul_rn(before[4 * j + 2 * r + 1], a)), normalizer);
        x = 0.0F;
        y = 0.0F;
        if (head < group) *reinterpret_cast<float2*>(row + 8 * j) = total;
      }
    }
    is_empty = false;
    quarter.reset();
  }
};

}  // namespace winnow::cuda::attention_prefill
