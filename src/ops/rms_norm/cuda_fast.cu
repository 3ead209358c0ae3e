// One block a row, kept in registers between the sum and the scaling. The order of Σx² is fixed by
// the width: each thread's columns ascending, lanes pairwise, then warps ascending.
#include "ops/cuda/check.h"
#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/op_context.h"
#include "ops/rms_norm/rms_norm.h"

namespace winnow::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxVectors = 4;  // of four floats, held by a thread
constexpr std::int64_t kMaxWidth = std::int64_t{kThreads} * 4 * kMaxVectors;

__device__ float sum_of_squares(float4 v, float sum) {
  sum = fmaf(v.x, v.x, sum);
  sum = fmaf(v.y, v.y, sum);
  sum = fmaf(v.z, v.z, sum);
  return fmaf(v.w, v.w, sum);
}

__device__ float4 scaled(float4 v, float inverse, float4 weight) {
  return {(v.x * inverse) * (1.0F + weight.x), (v.y * inverse) * (1.0F + weight.y),
          (v.z * inverse) * (1.0F + weight.z), (v.w * inverse) * (1.0F + weight.w)};
}

__global__ void __launch_bounds__(kThreads)
    rms_norm_rows(const float4* x, const float4* weight, float eps, int num_vectors, float* out) {
  __shared__ float warp_sums[kWarps];
  const float4* const row = x + std::int64_t{blockIdx.x} * num_vectors;
  float4 held[kMaxVectors];
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < kMaxVectors; ++i) {
    const int at = i * kThreads + static_cast<int>(threadIdx.x);
    held[i] = at < num_vectors ? row[at] : float4{};
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
  const float inverse = 1.0F / sqrtf(total / static_cast<float>(4 * num_vectors) + eps);
  float4* const to = reinterpret_cast<float4*>(out) + std::int64_t{blockIdx.x} * num_vectors;
#pragma unroll
  for (int i = 0; i < kMaxVectors; ++i) {
    const int at = i * kThreads + static_cast<int>(threadIdx.x);
    if (at < num_vectors) to[at] = scaled(held[i], inverse, weight[at]);
  }
}

}  // namespace

void fast::rms_norm(const ops::OpContext& context, const ops::RmsNormParams& params) {
  if (params.num_rows == 0) return;
  if (params.width % 4 != 0 || params.width > kMaxWidth) return exact::rms_norm(context, params);
  rms_norm_rows<<<static_cast<unsigned>(params.num_rows), kThreads, 0, context.cuda->stream()>>>(
      reinterpret_cast<const float4*>(params.x), reinterpret_cast<const float4*>(params.weight),
      params.eps, static_cast<int>(params.width / 4), params.out);
  check_launch("rms_norm_rows");
}

}  // namespace winnow::cuda
