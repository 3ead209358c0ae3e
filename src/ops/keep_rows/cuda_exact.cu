#include "ops/cuda/check.h"
#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/keep_rows/keep_rows.h"
#include "ops/op_context.h"

namespace winnow::cuda::exact {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kBlocksPerRow = 8;  // one row alone is a chain of loads otherwise

__global__ void exact_keep_rows(ops::KeepRowsParams params) {
  const std::int64_t i = blockIdx.x;
  const float* const from = params.from + params.rows[i] * params.width;
  float* const to = params.to + i * params.width;
  const std::int64_t first = std::int64_t{blockIdx.y} * kThreads + threadIdx.x;
  const std::int64_t stride = std::int64_t{gridDim.y} * kThreads;
  for (std::int64_t k = first; k < params.width; k += stride) to[k] = from[k];
}

}  // namespace

void keep_rows(const ops::OpContext& context, const ops::KeepRowsParams& params) {
  if (params.num_rows == 0) return;
  const dim3 grid(static_cast<unsigned>(params.num_rows), kBlocksPerRow);
  exact_keep_rows<<<grid, kThreads, 0, context.cuda->stream()>>>(params);
  check_launch("keep_rows");
}

}  // namespace winnow::cuda::exact
