// One block a row. The sum has 16 lanes by its contract: for 6144 columns a chain of 384 fused
// multiply-adds, 0.85 us at 1.8 GHz, which a half-warp walks in shared memory. Around that chain
// everything is wide, since 120 of these stand between the products of a decode step: a thread
// keeps its part of the row and of the weights in registers, and reads them before the sum.
#include <cstdint>

#include "ops/cuda/check.h"
#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/lanes.cuh"
#include "ops/op_context.h"
#include "ops/rms_norm/rms_norm.h"

namespace winnow::cuda::exact {
namespace {

constexpr int kThreads = 512;
constexpr int kVectors = 4;  // float4 that a thread holds
constexpr std::int64_t kHeldWidth = kThreads * kVectors * 4;
/// Rows up to this width are kept in shared memory where they do not fit registers.
constexpr std::int64_t kStagedWidth = 12000;

__device__ float inverse_of(float sum, const ops::RmsNormParams& params) {
  return 1.0F / sqrtf(sum / static_cast<float>(params.width) + params.eps);
}

__device__ float normed(float x, float inverse, float weight) {
  return (x * inverse) * (1.0F + weight);
}

/// Rows of whole float4, at most kHeldWidth wide.
__global__ void __launch_bounds__(kThreads) exact_rms_norm_held(ops::RmsNormParams params) {
  extern __shared__ float4 staged[];
  __shared__ float shared_inverse;
  const int count = static_cast<int>(params.width / 4);
  const auto* const x =
      reinterpret_cast<const float4*>(params.x) + std::int64_t{blockIdx.x} * count;
  const auto* const weight = reinterpret_cast<const float4*>(params.weight);
  float4 held[kVectors];
  float4 weights[kVectors];
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = static_cast<int>(threadIdx.x) + v * kThreads;
    if (i < count) held[v] = x[i];
  }
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = static_cast<int>(threadIdx.x) + v * kThreads;
    if (i < count) weights[v] = weight[i];
    if (i < count) staged[i] = held[v];
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    const float sum =
        square_sum16(reinterpret_cast<const float*>(staged), static_cast<int>(params.width));
    if (threadIdx.x == 0) shared_inverse = inverse_of(sum, params);
  }
  __syncthreads();
  const float inverse = shared_inverse;
  auto* const out = reinterpret_cast<float4*>(params.out) + std::int64_t{blockIdx.x} * count;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int i = static_cast<int>(threadIdx.x) + v * kThreads;
    if (i >= count) continue;
    out[i] = {normed(held[v].x, inverse, weights[v].x), normed(held[v].y, inverse, weights[v].y),
              normed(held[v].z, inverse, weights[v].z), normed(held[v].w, inverse, weights[v].w)};
  }
}

/// Rows of one block where there are many: as many chains side by side, a half-warp each.
constexpr int kManyRows = 4;
/// Between rows in shared memory, so that the two chains of a warp meet no bank conflict.
constexpr int kRowGap = 16;
constexpr std::int64_t kManyWidth = 8192;

/// kManyRows rows of whole float4, at most kManyWidth wide.
__global__ void __launch_bounds__(kThreads) exact_rms_norm_many(ops::RmsNormParams params) {
  extern __shared__ float4 staged[];
  __shared__ float inverses[kManyRows];
  const int count = static_cast<int>(params.width / 4);
  const int pitch = count + kRowGap / 4;
  const std::int64_t first = std::int64_t{blockIdx.x} * kManyRows;
  const std::int64_t left = params.num_rows - first;
  const int num_rows = static_cast<int>(left < kManyRows ? left : kManyRows);
  const auto* const x = reinterpret_cast<const float4*>(params.x) + first * count;
#pragma unroll
  for (int row = 0; row < kManyRows; ++row) {
    if (row >= num_rows) break;
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
      staged[row * pitch + i] = x[row * count + i];
    }
  }
  __syncthreads();
  if (threadIdx.x < kManyRows * 16) {
    const int row = static_cast<int>(threadIdx.x / 16);
    const float sum = square_sum16(reinterpret_cast<const float*>(staged + row * pitch),
                                   static_cast<int>(params.width));
    if (threadIdx.x % 16 == 0) inverses[row] = inverse_of(sum, params);
  }
  __syncthreads();
  const auto* const weight = reinterpret_cast<const float4*>(params.weight);
  auto* const out = reinterpret_cast<float4*>(params.out) + first * count;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    const float4 w = weight[i];
#pragma unroll
    for (int row = 0; row < kManyRows; ++row) {
      if (row >= num_rows) break;
      const float4 v = staged[row * pitch + i];
      const float inverse = inverses[row];
      out[row * count + i] = {normed(v.x, inverse, w.x), normed(v.y, inverse, w.y),
                              normed(v.z, inverse, w.z), normed(v.w, inverse, w.w)};
    }
  }
}

__global__ void __launch_bounds__(kThreads) exact_rms_norm_any(ops::RmsNormParams params) {
  extern __shared__ float4 dynamic[];
  float* const staged = reinterpret_cast<float*>(dynamic);
  __shared__ float shared_inverse;
  const float* const x = params.x + blockIdx.x * params.width;
  float* const out = params.out + blockIdx.x * params.width;
  const bool is_staged = params.width <= kStagedWidth;
  if (is_staged) {
    for (std::int64_t i = threadIdx.x; i < params.width; i += kThreads) staged[i] = x[i];
    __syncthreads();
  }
  const float* const row = is_staged ? staged : x;
  if (threadIdx.x < 32) {
    const float sum = square_sum16(row, static_cast<int>(params.width));
    if (threadIdx.x == 0) shared_inverse = inverse_of(sum, params);
  }
  __syncthreads();
  const float inverse = shared_inverse;
  for (std::int64_t i = threadIdx.x; i < params.width; i += kThreads) {
    out[i] = normed(row[i], inverse, params.weight[i]);
  }
}

bool is_aligned(const float* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % alignof(float4) == 0;
}

}  // namespace

void rms_norm(const ops::OpContext& context, const ops::RmsNormParams& params) {
  if (params.num_rows == 0) return;
  CUstream_st* const stream = context.cuda->stream();
  const auto blocks = static_cast<unsigned>(params.num_rows);
  const auto width = static_cast<std::size_t>(params.width);
  const bool is_wide = params.width % 4 == 0 && is_aligned(params.x) && is_aligned(params.weight) &&
                       is_aligned(params.out);
  if (is_wide && params.width <= kManyWidth &&
      params.num_rows > 2 * context.cuda->num_multiprocessors()) {
    const std::size_t staged = kManyRows * (width + kRowGap) * sizeof(float);
    check(cudaFuncSetAttribute(exact_rms_norm_many, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(staged)),
          "rms_norm: shared memory");
    exact_rms_norm_many<<<(blocks + kManyRows - 1) / kManyRows, kThreads, staged, stream>>>(params);
  } else if (is_wide && params.width <= kHeldWidth) {
    exact_rms_norm_held<<<blocks, kThreads, width * sizeof(float), stream>>>(params);
  } else {
    const std::size_t staged = params.width <= kStagedWidth ? width * sizeof(float) : 0;
    exact_rms_norm_any<<<blocks, kThreads, staged, stream>>>(params);
  }
  check_launch("rms_norm");
}

}  // namespace winnow::cuda::exact
