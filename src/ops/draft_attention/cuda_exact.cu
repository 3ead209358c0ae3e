// draft_attention() in its written order: one CUDA block for each (token, kv head) walks the cache
// blocks that the token sees, then its own block of tokens.
#include <algorithm>

#include "ops/attention/cuda_exact_part.cuh"
#include "ops/cuda/check.h"
#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/draft_attention/draft_attention.h"
#include "ops/op_context.h"

namespace winnow::cuda::exact {
namespace {

using namespace attention_part;

struct DraftKernelParams {
  const float* qkv = nullptr;
  ops::AttentionShape shape;
  float scale = 0.0F;
  std::int32_t window = 0;
  int most_keys = 0;  // of a part
  DeviceBatch batch;
  CachePlanes planes;
  float* out = nullptr;
};

__global__ void __launch_bounds__(kThreads) exact_draft_attention(const DraftKernelParams params) {
  extern __shared__ float4 dynamic[];
  const ops::AttentionShape& shape = params.shape;
  const int group = shape.num_heads / shape.num_kv_heads;
  const int heads = padded(group);
  const int dim = shape.head_dim;
  const Arrays shared(reinterpret_cast<float*>(dynamic), heads, dim, params.most_keys);
  const auto token = static_cast<std::int32_t>(blockIdx.x);
  const auto kv_head = static_cast<int>(blockIdx.y);
  const ops::SequenceSlice& slice = params.batch.sequences[params.batch.sequence_of[token]];
  const std::int64_t width = std::int64_t{shape.num_heads + 2 * shape.num_kv_heads} * dim;
  begin(shared, heads, group, dim,
        params.qkv + token * width + std::int64_t{kv_head} * group * dim);

  const int block_tokens = params.planes.block_tokens;
  const std::int32_t end = slice.first_position;
  for (std::int32_t p = ops::first_visible(params.batch.positions[token], params.window);
       p < end;) {
    const std::int32_t block = p / block_tokens;
    const std::int32_t part_end = min(end, (block + 1) * block_tokens);
    attend_block(shared, heads, dim, params.scale, params.planes, kv_head,
                 params.planes.row(slice.block_table[block]), p % block_tokens, part_end - p);
    p = part_end;
  }
  const auto fill_own = [&](int first_head) {
    const float* const from =
        params.qkv + slice.first_token * width + std::int64_t{first_head + kv_head} * dim;
    return [=](int first, int count) {
      for (int i = static_cast<int>(threadIdx.x); i < count * dim; i += kThreads) {
        const int t = i / dim;
        const int d = i - t * dim;
        shared.tile[t * (dim + 1) + d] = from[(first + t) * width + d];
      }
    };
  };
  attend(shared, heads, dim, params.scale, slice.num_tokens, fill_own(shape.num_heads),
         fill_own(shape.num_heads + shape.num_kv_heads));
  finish(shared, group, dim,
         params.out + (std::int64_t{token} * shape.num_heads + kv_head * group) * dim);
}

}  // namespace

void draft_attention(const ops::OpContext& context, const ops::DraftAttentionParams& params) {
  if (params.batch.num_tokens == 0) return;
  const ops::AttentionShape& shape = params.shape;
  const CachePlanes planes = drafter_planes(params.cache, params.layer);
  const DraftKernelParams kernel{
      .qkv = params.qkv,
      .shape = shape,
      .scale = params.scale,
      .window = params.window,
      .most_keys = std::max(planes.block_tokens, params.batch.max_slice_tokens),
      .batch = device_batch(params.batch),
      .planes = planes,
      .out = params.out};
  const std::size_t shared = Arrays::num_bytes(padded(shape.num_heads / shape.num_kv_heads),
                                               shape.head_dim, kernel.most_keys);
  check(cudaFuncSetAttribute(exact_draft_attention, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared)),
        "draft_attention: shared memory");
  const dim3 blocks(static_cast<unsigned>(params.batch.num_tokens),
                    static_cast<unsigned>(shape.num_kv_heads));
  exact_draft_attention<<<blocks, kThreads, shared, context.cuda->stream()>>>(kernel);
  check_launch("draft_attention");
}

}  // namespace winnow::cuda::exact
