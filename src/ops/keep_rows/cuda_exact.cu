#include "ops/cuda/check.h"
#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/keep_rows/keep_rows.h"
#include "ops/op_context.h"

namespace winnow::cuda::exact {
namespace {

constexpr int kThreads = 256;

__global__ void exact_keep_rows(ops::KeepRowsParams params) {
  const std::int64_t i = blockIdx.x;
  const float* const from = params.from + params.rows[i] * params.width;
  float* const to = params.to + i * params.width;
  for (std::int64_t k = threadIdx.x; k < params.width; k += kThreads) to[k] = from[k];
}

}  // namespace

void keep_rows(const ops::OpContext& context, const ops::KeepRowsParams& params) {
  if (params.num_rows == 0) return;
  exact_keep_rows<<<static_cast<unsigned>(params.num_rows), kThreads, 0, context.cuda->stream()>>>(
      params);
  check_launch("keep_rows");
}

}  // namespace winnow::cuda::exact
