// RMS norm of one row by one block, kept in registers between the sum and the scaling. The order of
// Σx² is fixed by the width: each thread's columns ascending, lanes pairwise, then warps ascending.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/ptx.cuh"

namespace winnow::cuda::rms_norm_rows {

inline constexpr int kThreads = 512;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kMaxVectors = 4;  // of four floats, held by a thread
inline constexpr std::int64_t kMaxWidth = std::int64_t{kThreads} * 4 * kMaxVectors;

struct RowsParams {
  const float4* x;
  const float4* weight;
  float4* out;
  float eps;
  int num_vectors;  // of a row
};

__device__ __forceinline__ float sum_of_squares(float4 v, float sum) {
  sum = fmaf(v.x, v.x, sum);
  sum = fmaf(v.y, v.y, sum);
  sum = fmaf(v.z, v.z, sum);
  return fmaf(v.w, v.w, sum);
}

__device__ __forceinline__ float4 scaled(float4 v, float inverse, float4 weight) {
  return {(v.x * inverse) * (1.0F + weight.x), (v.y * inverse) * (1.0F + weight.y),
          (v.z * inverse) * (1.0F + weight.z), (v.w * inverse) * (1.0F + weight.w)};
}

/// Row `row`, by a block of kThreads threads; `warp_sums` are kWarps floats of shared memory.
/// kOverlaps: the launch before may still write the row, and the next may begin.
template <bool kOverlaps>
__device__ __forceinline__ void norm_row(const RowsParams& p, float* warp_sums, int row) {
  const float4* const from = p.x + std::int64_t{row} * p.num_vectors;
  float4 held[kMaxVectors];
  float4 weights[kMaxVectors];
  float sum = 0.0F;
  // Weights are older than any launch.
#pragma unroll
  for (int i = 0; i < kMaxVectors; ++i) {
    const int at = i * kThreads + static_cast<int>(threadIdx.x);
    weights[i] = at < p.num_vectors ? p.weight[at] : float4{};
  }
  if constexpr (kOverlaps) {
    ptx::griddepcontrol_launch_dependents();
    ptx::griddepcontrol_wait();
  }
#pragma unroll
  for (int i = 0; i < kMaxVectors; ++i) {
    const int at = i * kThreads + static_cast<int>(threadIdx.x);
    held[i] = at < p.num_vectors ? from[at] : float4{};
  }
#pragma unroll
  for (int i = 0; i < kMaxVectors; ++i) sum = sum_of_squares(held[i], sum);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0U, sum, step);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sum;
  __syncthreads();
  float total = 0.0F;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) total += warp_sums[warp];
  const float inverse = 1.0F / sqrtf(total / static_cast<float>(4 * p.num_vectors) + p.eps);
  float4* const to = p.out + std::int64_t{row} * p.num_vectors;
#pragma unroll
  for (int i = 0; i < kMaxVectors; ++i) {
    const int at = i * kThreads + static_cast<int>(threadIdx.x);
    if (at < p.num_vectors) to[at] = scaled(held[i], inverse, weights[i]);
  }
}

}  // namespace winnow::cuda::rms_norm_rows
