// Which kernel attends. Decode and prefill kernels give equal bits (ops/cuda/cache_fragments.cuh):
// a step takes the decode kernels when its slices are short, and a shape takes both or neither.
#include "ops/attention/attention.h"
#include "ops/attention/cuda_fast_decode.h"
#include "ops/attention/cuda_prefill.h"
#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/op_context.h"

namespace winnow::cuda::fast {

void attention(const ops::OpContext& context, const ops::AttentionParams& params) {
  const CachePlanes planes = cache_planes(params.cache, params.layer);
  const bool is_sparse = params.blocks != nullptr;
  if (!covers_attention_decode(params.shape, planes) ||
      !covers_attention_prefill(params.shape, planes, is_sparse)) {
    return exact::attention(context, params);
  }
  Context& cuda = *context.cuda;
  if (params.batch.max_slice_tokens > kAttentionDecodeTokens) {
    return launch_attention_prefill({.q = params.q,
                                     .shape = params.shape,
                                     .scale = params.scale,
                                     .batch = device_batch(params.batch),
                                     .planes = planes,
                                     .blocks = params.blocks,
                                     .out = params.out},
                                    cuda.stream());
  }
  const AttentionDecodeArgs args{.q = params.q,
                                 .shape = params.shape,
                                 .scale = params.scale,
                                 .batch = device_batch(params.batch),
                                 .planes = planes,
                                 .blocks = params.blocks,
                                 .out = params.out};
  if (is_sparse) return launch_sparse_decode(args, cuda.stream());
  const std::int32_t num_positions = params.batch.num_positions;
  launch_dense_decode(args, num_positions, cuda.num_multiprocessors(),
                      cuda.scratch().take(dense_decode_scratch_bytes(args, num_positions)),
                      cuda.stream());
  cuda.scratch().reset();
}

}  // namespace winnow::cuda::fast
