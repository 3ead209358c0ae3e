// Of attention for many tokens: the softmax of one warp's rows, the query heads of one token, in
// the layout of wgmma accumulators. Included by cuda_prefill_*.cu alone.
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

/// One token's merged quarters: maxima and sums in registers, outputs in the result itself. Until
/// the last quarter they lie there in an order of their own if the token's rows fill the warp's.
class Merged {
 public:
  /// Adds a quarter and clears it; the last one also normalises. `wait` returns once `outputs` are
  /// there; what was merged before is read meanwhile. `out`: the token's first head of the group.
  template <class Wait>
  __device__ __forceinline__ void add(Quarter& quarter, float (&outputs)[64], float factor,
                                      bool is_last, float* out, int group, Wait wait) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    if (group != 16) {
      wait();
      const Scales scales = take(quarter, factor, is_last);
      add_rows(scales, outputs, out, group);
    } else if (is_empty_) {
      wait();
      const Scales scales = take(quarter, factor, is_last);
#pragma unroll
      for (int i = 0; i < 64; ++i) outputs[i] = scales.total(outputs[i], 0.0F, i / 2 % 2);
      write(outputs, is_last, out);
    } else {
      float4 before[16];
#pragma unroll
      for (int j = 0; j < 16; ++j) before[j] = reinterpret_cast<const float4*>(out)[j * 32 + lane];
      wait();
      const Scales scales = take(quarter, factor, is_last);
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        const float4 x = before[j];
        outputs[4 * j] = scales.total(outputs[4 * j], x.x, 0);
        outputs[4 * j + 1] = scales.total(outputs[4 * j + 1], x.y, 0);
        outputs[4 * j + 2] = scales.total(outputs[4 * j + 2], x.z, 1);
        outputs[4 * j + 3] = scales.total(outputs[4 * j + 3], x.w, 1);
      }
      write(outputs, is_last, out);
    }
    __syncwarp();  // clears registers once, not at the end of each branch
#pragma unroll
    for (int i = 0; i < 64; ++i) outputs[i] = 0.0F;
    is_empty_ = false;
  }

 private:
  /// Of rows lane / 4 and 8 more.
  struct Scales {
    float a[2];
    float b[2];
    float normalizer[2];

    __device__ __forceinline__ float total(float added, float before, int r) const {
      return __fmul_rn(__fmaf_rn(added, b[r], __fmul_rn(before, a[r])), normalizer[r]);
    }
  };

  __device__ __forceinline__ Scales take(Quarter& quarter, float factor, bool is_last) {
    Scales scales;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rows_[r].add(quarter.maximum[r], quarter.sum(r), factor, scales.a[r], scales.b[r]);
      scales.normalizer[r] = is_last ? rows_[r].normalizer() : 1.0F;
    }
    quarter.reset();
    return scales;
  }

  /// 16 rows.
  __device__ static __forceinline__ void write(const float (&outputs)[64], bool is_last,
                                               float* out) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    if (is_last) {
      __syncwarp();  // the other lanes have read theirs
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        *reinterpret_cast<float2*>(out + place(i)) =
            make_float2(outputs[2 * i], outputs[2 * i + 1]);
      }
    } else {
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        reinterpret_cast<float4*>(out)[j * 32 + lane] =
            make_float4(outputs[4 * j], outputs[4 * j + 1], outputs[4 * j + 2], outputs[4 * j + 3]);
      }
    }
  }

  /// Fewer rows, always where they belong.
  __device__ __forceinline__ void add_rows(const Scales& scales, const float (&outputs)[64],
                                           float* out, int group) const {
    const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      if (lane / 4 + i % 2 * 8 >= group) continue;
      auto* const pair = reinterpret_cast<float2*>(out + place(i));
      const float2 before = is_empty_ ? make_float2(0.0F, 0.0F) : *pair;
      *pair = make_float2(scales.total(outputs[2 * i], before.x, i % 2),
                          scales.total(outputs[2 * i + 1], before.y, i % 2));
    }
  }

  /// Where pair i of a lane's accumulators belongs.
  __device__ static __forceinline__ int place(int i) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    return (lane / 4 + i % 2 * 8) * kFastDim + i / 2 * 8 + 2 * (lane & 3);
  }

  MergedSoftmax rows_[2];
  bool is_empty_ = true;
};

}  // namespace winnow::cuda::attention_prefill
