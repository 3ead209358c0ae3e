// Which kernel attends: the one for blocks where it covers the shape, whatever the batch is.
#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/draft_attention/cuda_block.h"
#include "ops/draft_attention/draft_attention.h"
#include "ops/op_context.h"

namespace winnow::cuda::fast {

void draft_attention(const ops::OpContext& context, const ops::DraftAttentionParams& params) {
  const CachePlanes planes = drafter_planes(params.cache, params.layer);
  if (!covers_draft_block(params.shape, planes)) return exact::draft_attention(context, params);
  const DraftBlockArgs args{.qkv = params.qkv,
                            .shape = params.shape,
                            .scale = params.scale,
                            .window = params.window,
                            .max_slice_tokens = params.batch.max_slice_tokens,
                            .batch = device_batch(params.batch),
                            .planes = planes,
                            .out = params.out};
  launch_draft_block(
      args, draft_block_cluster(draft_block_tiles(args), context.cuda->num_multiprocessors()),
      context.cuda->stream());
}

}  // namespace winnow::cuda::fast
