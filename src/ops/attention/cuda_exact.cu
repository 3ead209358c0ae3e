// attention() in its written order: one CUDA block for each (token, kv head) walks the token's
// blocks.
#include <algorithm>

#include "ops/attention/attention.h"
#include "ops/attention/cuda_exact_part.cuh"
#include "ops/cuda/check.h"
#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/op_context.h"

namespace winnow::cuda::exact {
namespace {

using namespace attention_part;

struct AttentionKernelParams {
  const float* q = nullptr;
  ops::AttentionShape shape;
  float scale = 0.0F;
  DeviceBatch batch;
  CachePlanes planes;
  const std::int32_t* blocks = nullptr;
  float* out = nullptr;
};

__global__ void __launch_bounds__(kThreads) exact_attention(AttentionKernelParams params) {
  extern __shared__ float4 dynamic[];
  const ops::AttentionShape& shape = params.shape;
  const int group = shape.num_heads / shape.num_kv_heads;
  const int heads = padded(group);
  const int dim = shape.head_dim;
  const int block_tokens = params.planes.block_tokens;
  const Arrays shared(reinterpret_cast<float*>(dynamic), heads, dim, block_tokens);
  const auto token = static_cast<std::int32_t>(blockIdx.x);
  const auto kv_head = static_cast<int>(blockIdx.y);
  const std::int64_t first_value = (std::int64_t{token} * shape.num_heads + kv_head * group) * dim;
  begin(shared, heads, group, dim, params.q + first_value);
  fill_nvfp4_table(shared.table, params.planes.mode);

  const std::int32_t position = params.batch.positions[token];
  const std::int32_t own_block = position / block_tokens;
  const std::int32_t* const list =
      params.blocks == nullptr
          ? nullptr
          : params.blocks +
                (std::int64_t{token} * shape.num_index_heads + kv_head) * shape.top_k_blocks;
  const std::int32_t count = list == nullptr ? own_block + 1 : shape.top_k_blocks;
  for (std::int32_t i = 0; i < count; ++i) {
    const std::int32_t block = list == nullptr ? i : list[i];
    if (block < 0 || block > own_block) break;
    attend_block(shared, heads, dim, params.scale, params.planes, kv_head,
                 params.planes.row(params.batch.pool_row(token, block)), 0,
                 min(block_tokens, position - block * block_tokens + 1));
  }
  finish(shared, group, dim, params.out + first_value);
}

}  // namespace

void attention(const ops::OpContext& context, const ops::AttentionParams& params) {
  if (params.batch.num_tokens == 0) return;
  const ops::AttentionShape& shape = params.shape;
  const AttentionKernelParams kernel{.q = params.q,
                                     .shape = shape,
                                     .scale = params.scale,
                                     .batch = device_batch(params.batch),
                                     .planes = cache_planes(params.cache, params.layer),
                                     .blocks = params.blocks,
                                     .out = params.out};
  const std::size_t shared = Arrays::num_bytes(padded(shape.num_heads / shape.num_kv_heads),
                                               shape.head_dim, kernel.planes.block_tokens);
  check(cudaFuncSetAttribute(exact_attention, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shared)),
        "attention: shared memory");
  const dim3 blocks(static_cast<unsigned>(params.batch.num_tokens),
                    static_cast<unsigned>(shape.num_kv_heads));
  exact_attention<<<blocks, kThreads, shared, context.cuda->stream()>>>(kernel);
  check_launch("attention");
}

}  // namespace winnow::cuda::exact
