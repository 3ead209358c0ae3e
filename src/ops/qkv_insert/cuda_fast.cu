// The projection as linear/cuda_fast.h has it, then one half-warp for each head of each token.
#include <algorithm>

#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/ptx_sm90.cuh"
#include "ops/linear/cuda_fast.h"
#include "ops/op_context.h"
#include "ops/qkv_insert/cuda_finish_head.cuh"
#include "ops/qkv_insert/qkv_insert.h"

namespace winnow::cuda {
namespace {

constexpr int kHeadsOfBlock = 8;

struct FinishRound {
  FinishHeads heads;
  const float* projected = nullptr;  // [num_tokens][stack_heads][128]
  std::int32_t first_token = 0;      // of the batch
  std::int32_t num_tokens = 0;
};

__global__ void __launch_bounds__(16 * kHeadsOfBlock) sm90_finish_heads(const FinishRound p) {
  ptx::griddepcontrol_wait();
  const std::int32_t stack = p.heads.stack_heads();
  const std::int64_t index =
      std::int64_t{blockIdx.x} * kHeadsOfBlock + static_cast<int>(threadIdx.x) / 16;
  if (index >= std::int64_t{p.num_tokens} * stack) return;
  HeadLanes head;
  head.lane = static_cast<int>(threadIdx.x) % 16;
  head.mask = 0xFFFFU << (threadIdx.x % 32 / 16 * 16);
  const float* const from = p.projected + index * kFinishDim + head.lane;
#pragma unroll
  for (int k = 0; k < 8; ++k) head.v[k] = from[16 * k];
  head.finish(p.heads, static_cast<std::int32_t>(index % stack),
              p.first_token + static_cast<std::int32_t>(index / stack));
}

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
  const std::int64_t piece = width * kLeastPackedTokens * std::int64_t{sizeof(float)} +
                             packed_bytes(kLeastPackedTokens, parts.num_chunks());
  const std::int64_t round =
      std::max(scratch.num_bytes() / piece, std::int64_t{1}) * kLeastPackedTokens;
  const std::int64_t largest = std::min(round, num_tokens);
  float* const projected = scratch.take_array<float>(largest * width);
  const std::int64_t num_bytes = packed_bytes(largest, parts.num_chunks());
  std::byte* const packed = scratch.take(num_bytes);

  FinishRound finish{.heads = {.q_norm = params.q_norm,
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
                               .index_q = params.index_q},
                     .projected = projected};
  for (std::int64_t first = 0; first < num_tokens; first += largest) {
    const std::int64_t count = std::min(largest, num_tokens - first);
    project(*context.cuda,
            {.w = parts,
             .x = params.h + first * hidden,
             .x_stride = hidden,
             .y = projected,
             .y_stride = width,
             .num_tokens = count},
            packed, num_bytes);
    finish.first_token = static_cast<std::int32_t>(first);
    finish.num_tokens = static_cast<std::int32_t>(count);
    const std::int64_t heads = count * finish.heads.stack_heads();
    launch_overlapping(
        sm90_finish_heads,
        {.grid = dim3(static_cast<unsigned>((heads + kHeadsOfBlock - 1) / kHeadsOfBlock)),
         .block = dim3(16 * kHeadsOfBlock)},
        context.cuda->stream(), finish, "sm90_finish_heads");
  }
  scratch.reset();
}

}  // namespace fast
}  // namespace winnow::cuda
