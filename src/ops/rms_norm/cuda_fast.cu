#include "ops/cuda/check.h"
#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch.cuh"
#include "ops/op_context.h"
#include "ops/rms_norm/cuda_fast_row.cuh"
#include "ops/rms_norm/rms_norm.h"

namespace winnow::cuda {
namespace rms_norm_rows {

/// Rows of a step whose projections are cuda_fast_decode_stream.cu's. Blocks of other projections,
/// let in as early, were in the way: a layer of one token took 1 us more.
constexpr std::int64_t kLeastOverlapped = 2;
constexpr std::int64_t kMostOverlapped = 8;

template <bool kOverlaps>
__global__ void __launch_bounds__(kThreads) sm90_rms_norm(const RowsParams p) {
  __shared__ float warp_sums[kWarps];
  norm_row<kOverlaps>(p, warp_sums, static_cast<int>(blockIdx.x));
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
  const auto num_rows = static_cast<unsigned>(params.num_rows);
  cudaStream_t const stream = context.cuda->stream();
  if (params.num_rows >= kLeastOverlapped && params.num_rows <= kMostOverlapped) {
    launch_overlapping(sm90_rms_norm<true>, {.grid = dim3(num_rows), .block = dim3(kThreads)},
                       stream, rows, "sm90_rms_norm");
    return;
  }
  sm90_rms_norm<false><<<num_rows, kThreads, 0, stream>>>(rows);
  check_launch("sm90_rms_norm");
}

}  // namespace winnow::cuda
