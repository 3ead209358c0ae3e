// One block a row. The sum has 16 lanes by its contract, so a half-warp walks the row while it is
// in shared memory (for 6144 columns a chain of 384 fused multiply-adds); everything else is spread
// over the block.
#include "ops/cuda/check.h"
#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/lanes.cuh"
#include "ops/op_context.h"
#include "ops/rms_norm/rms_norm.h"

namespace winnow::cuda::exact {
namespace {

constexpr int kThreads = 512;
/// Rows up to this width are kept in shared memory between the sum and the scaling.
constexpr std::int64_t kStagedWidth = 12000;

__global__ void __launch_bounds__(kThreads) exact_rms_norm(ops::RmsNormParams params) {
  extern __shared__ float staged[];
  __shared__ float shared_inverse;
  const float* const x = params.x + blockIdx.x * params.width;
  float* const out = params.out + blockIdx.x * params.width;
  const bool is_staged = params.width <= kStagedWidth;
  if (is_staged) {
#pragma unroll 4
    for (std::int64_t i = threadIdx.x; i < params.width; i += kThreads) staged[i] = x[i];
    __syncthreads();
  }
  const float* const row = is_staged ? staged : x;
  if (threadIdx.x < 32) {
    const float sum = square_sum16(row, static_cast<int>(params.width));
    const float inverse = 1.0F / sqrtf(sum / static_cast<float>(params.width) + params.eps);
    if (threadIdx.x == 0) shared_inverse = inverse;
  }
  __syncthreads();
  const float inverse = shared_inverse;
#pragma unroll 4
  for (std::int64_t i = threadIdx.x; i < params.width; i += kThreads) {
    out[i] = (row[i] * inverse) * (params.offset + params.weight[i]);
  }
}

}  // namespace

void rms_norm(const ops::OpContext& context, const ops::RmsNormParams& params) {
  if (params.num_rows == 0) return;
  const std::size_t staged =
      params.width <= kStagedWidth ? static_cast<std::size_t>(params.width) * sizeof(float) : 0;
  exact_rms_norm<<<static_cast<unsigned>(params.num_rows), kThreads, staged,
                   context.cuda->stream()>>>(params);
  check_launch("rms_norm");
}

}  // namespace winnow::cuda::exact
