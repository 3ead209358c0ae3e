// Which kernel selects blocks. Decode and prefill kernels give equal bits
// (ops/cuda/cache_fragments.cuh): a step takes the decode kernel when its slices are short, and a
// shape takes both or neither.
#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/index_topk/cuda_fast_decode.h"
#include "ops/index_topk/cuda_prefill.h"
#include "ops/index_topk/index_topk.h"
#include "ops/op_context.h"

namespace winnow::cuda::fast {

void index_topk(const ops::OpContext& context, const ops::IndexTopkParams& params) {
  const CachePlanes planes = cache_planes(params.cache, params.layer);
  if (!covers_index_decode(params.shape, planes) || !covers_index_prefill(params.shape, planes)) {
    return exact::index_topk(context, params);
  }
  Context& cuda = *context.cuda;
  DeviceScratch& scratch = cuda.scratch();
  if (params.batch.max_slice_tokens <= kIndexDecodeTokens) {
    const IndexDecodeArgs args{.index_q = params.index_q,
                               .shape = params.shape,
                               .batch = device_batch(params.batch),
                               .planes = planes,
                               .max_slice_tokens = params.batch.max_slice_tokens,
                               .num_positions = params.batch.num_positions,
                               .num_multiprocessors = cuda.num_multiprocessors(),
                               .blocks = params.blocks};
    launch_index_decode(args, scratch.take(index_decode_scratch_bytes(args)), cuda.stream());
  } else {
    const IndexPrefillArgs args{.index_q = params.index_q,
                                .shape = params.shape,
                                .batch = device_batch(params.batch),
                                .planes = planes,
                                .num_positions = params.batch.num_positions,
                                .num_multiprocessors = cuda.num_multiprocessors(),
                                .blocks = params.blocks};
    const std::int64_t num_bytes = index_prefill_scratch_bytes(args, scratch.num_bytes());
    launch_index_prefill(args, scratch.take(num_bytes), num_bytes, cuda.stream());
  }
  scratch.reset();
}

}  // namespace winnow::cuda::fast
