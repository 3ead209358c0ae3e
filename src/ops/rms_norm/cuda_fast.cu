#include "ops/cuda/check.h"
#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/op_context.h"
#include "ops/rms_norm/cuda_fast_row.cuh"
#include "ops/rms_norm/rms_norm.h"

namespace winnow::cuda {
namespace rms_norm_rows {

__global__ void __launch_bounds__(kThreads) sm90_rms_norm(const RowsParams p) {
  __shared__ float warp_sums[kWarps];
  norm_row(p, warp_sums, static_cast<int>(blockIdx.x));
}

}  // namespace rms_norm_rows

void fast::rms_norm(const ops::OpContext& context, const ops::RmsNormParams& params) {
  using namespace rms_norm_rows;  // NOLINT(google-build-using-namespace): of this file
  if (params.num_rows == 0) return;
  const bool is_covered =
      params.offset == 1.0F && params.width % 4 == 0 && params.width <= kMaxWidth;
  if (!is_covered) return exact::rms_norm(context, params);
  const RowsParams rows{.x = reinterpret_cast<const float4*>(params.x),
                        .weight = reinterpret_cast<const float4*>(params.weight),
                        .out = reinterpret_cast<float4*>(params.out),
                        .eps = params.eps,
                        .num_vectors = static_cast<int>(params.width / 4)};
  sm90_rms_norm<<<static_cast<unsigned>(params.num_rows), kThreads, 0, context.cuda->stream()>>>(
      rows);
  check_launch("sm90_rms_norm");
}

}  // namespace winnow::cuda
