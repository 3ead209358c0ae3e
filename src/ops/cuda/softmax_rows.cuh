// Softmax over rows in the layout of wgmma accumulators: of d[4j + i] a lane has rows lane / 4 (+ 8
// for i ≥ 2) and columns 8j + 2 (lane % 4) (+ 1 for odd i), 128 in all; a quad shares its rows.
#pragma once

#include "ops/cuda/cache_fragments.cuh"

namespace winnow::cuda {

/// Of a lane's two rows.
struct RowPair {
  float rows[2];

  __device__ __forceinline__ float& operator[](int r) { return rows[r]; }
  __device__ __forceinline__ float operator[](int r) const { return rows[r]; }
};

/// -inf in columns outside [begin, end).
__device__ __forceinline__ void hide_columns(float (&d)[64], int begin, int end) {
  const int first = 2 * (static_cast<int>(threadIdx.x) & 3);
#pragma unroll
  for (int j = 0; j < 16; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = 8 * j + first + (i & 1);
      if (column < begin || column >= end) d[4 * j + i] = -INFINITY;
    }
  }
}

/// The largest of a lane's own columns; NaN counts as -inf.
__device__ __forceinline__ RowPair lane_maxima(const float (&d)[64]) {
  float best[4] = {d[0], d[1], d[2], d[3]};
#pragma unroll
  for (int j = 1; j < 16; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) best[i] = fmaxf(best[i], d[4 * j + i]);
  }
  return {fmaxf(fmaxf(best[0], best[1]), -INFINITY), fmaxf(fmaxf(best[2], best[3]), -INFINITY)};
}

/// The largest of the whole rows, in every lane of the quad.
__device__ __forceinline__ RowPair row_maxima(const float (&d)[64]) {
  RowPair best = lane_maxima(d);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    best[r] = fmaxf(best[r], __shfl_xor_sync(~0U, best[r], 1));
    best[r] = fmaxf(best[r], __shfl_xor_sync(~0U, best[r], 2));
  }
  return best;
}

__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(~0U, x, 1);
  return x + __shfl_xor_sync(~0U, x, 2);
}

/// One token's merged quarters by one warp: maxima and sums in registers, outputs in the result
/// itself. Until the last quarter they lie there in an order of their own if the token's rows fill
/// the warp's.
class MergedRows {
 public:
  /// Adds a quarter and clears it; the last one also normalises. `wait` returns once `outputs` are
  /// there; what was merged before is read meanwhile. `out`: the token's first head of the group.
  /// A quarter has maximum[2] (or what else its weights are relative to), sum(row) and reset().
  template <class Quarter, class Wait>
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

  template <class Quarter>
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

}  // namespace winnow::cuda
