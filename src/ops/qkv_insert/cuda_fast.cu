// The projection as linear/cuda_fast.h has it, what adapters add as exact:: has it, then one
// half-warp for each head of each token.
#include <algorithm>

#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/linear/cuda_fast.h"
#include "ops/lora/cuda_exact.h"
#include "ops/op_context.h"
#include "ops/qkv_insert/cuda_finish_heads.h"
#include "ops/qkv_insert/qkv_insert.h"

namespace winnow::cuda {
namespace {

bool has_kernel(const ops::AttentionShape& shape) {
  return shape.head_dim == kFinishDim && shape.rotary_dim == kFinishRotary &&
         (shape.num_index_heads == 0 || shape.index_head_dim == kFinishDim);
}

}  // namespace

namespace fast {

void qkv_insert(const ops::OpContext& context, const ops::QkvInsertParams& params) {
  const FastParts parts = fast_parts(*params.w);
  if (parts.count == 0 || !has_kernel(params.shape)) return exact::qkv_insert(context, params);
  const std::int64_t num_tokens = params.batch.num_tokens;
  if (num_tokens == 0) return;

  const std::int64_t hidden = params.w->cols();
  const std::int64_t width = params.w->rows();
  DeviceScratch& scratch = context.cuda->scratch();
  const LoraTables adapters(params.lora, [](const ops::LoraSite& site) { return site.table; });
  const ProjectionRound round = plan_round(*context.cuda, num_tokens, parts.num_chunks(),
                                           (width + adapters.rank()) * std::int64_t{sizeof(float)});
  float* const projected = scratch.take_array<float>(round.num_tokens * width);
  float* const u = scratch.take_array<float>(round.num_tokens * adapters.rank());
  std::byte* const workspace = scratch.take(round.workspace_bytes);
  const FinishHeads heads{.q_norm = params.q_norm,
                          .k_norm = params.k_norm,
                          .index_q_norm = params.index_q_norm,
                          .index_k_norm = params.index_k_norm,
                          .eps = params.eps,
                          .rope = params.rope,
                          .num_heads = params.shape.num_heads,
                          .num_kv_heads = params.shape.num_kv_heads,
                          .num_index_heads = params.shape.num_index_heads,
                          .batch = device_batch(params.batch),
                          .planes = cache_planes(params.cache, params.layer),
                          .q = params.q,
                          .index_q = params.index_q};
  for (std::int64_t first = 0; first < num_tokens; first += round.num_tokens) {
    const std::int64_t count = std::min(round.num_tokens, num_tokens - first);
    project(*context.cuda,
            {.w = parts,
             .x = params.h + first * hidden,
             .x_stride = hidden,
             .y = projected,
             .y_stride = width,
             .num_tokens = count},
            workspace, round.workspace_bytes);
    exact::add_lora(context.cuda->stream(), adapters, first,
                    {.x = params.h + first * hidden,
                     .x_stride = hidden,
                     .y = projected,
                     .y_stride = width,
                     .num_rows = count},
                    u);
    finish_heads(context.cuda->stream(), heads, projected, static_cast<std::int32_t>(first),
                 static_cast<std::int32_t>(count));
  }
  scratch.reset();
}

}  // namespace fast
}  // namespace winnow::cuda
