#include <algorithm>

#include "ops/cuda/check.h"
#include "ops/cuda/codecs.cuh"
#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/lora/cuda_exact.h"
#include "ops/op_context.h"
#include "ops/qkv_insert/cuda_exact_head.cuh"
#include "ops/qkv_insert/qkv_insert.h"

namespace winnow::cuda::exact {
namespace {

constexpr int kHeadsOfBlock = 4;  // a warp each

/// What a head of the stack [q; k; v; index_q; index_k] is.
enum class HeadKind { kQuery, kKey, kValue, kIndexQuery, kIndexKey };

struct Head {
  HeadKind kind = HeadKind::kQuery;
  int number = 0;              // within its kind
  std::int64_t first_row = 0;  // of the projection
};

__device__ Head head_of(const ops::AttentionShape& shape, int i) {
  const std::int64_t dim = shape.head_dim;
  const std::int64_t row = i * dim;
  if (i < shape.num_heads) return {HeadKind::kQuery, i, row};
  i -= shape.num_heads;
  if (i < shape.num_kv_heads) return {HeadKind::kKey, i, row};
  i -= shape.num_kv_heads;
  if (i < shape.num_kv_heads) return {HeadKind::kValue, i, row};
  i -= shape.num_kv_heads;
  const std::int64_t index_row =
      (shape.num_heads + 2 * shape.num_kv_heads) * dim + i * std::int64_t{shape.index_head_dim};
  if (i < shape.num_index_heads) return {HeadKind::kIndexQuery, i, index_row};
  return {HeadKind::kIndexKey, 0, index_row};
}

/// Params as plain values.
struct FinishParams {
  const float* projected = nullptr;  // [tokens of the chunk][width]
  std::int64_t width = 0;
  std::int32_t first_token = 0;  // of the chunk
  std::int32_t num_heads = 0;    // of the stack
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  const float* index_q_norm = nullptr;
  const float* index_k_norm = nullptr;
  float eps = 0.0F;
  ops::RopeTable rope;
  ops::AttentionShape shape;
  DeviceBatch batch;
  CachePlanes planes;
  float* q = nullptr;
  float* index_q = nullptr;
};

__device__ void copy_query(const float* head, int dim, bool cast, float* out) {
  for (int d = static_cast<int>(threadIdx.x % 32); d < dim; d += 32) {
    out[d] = cast ? decode_e4m3(encode_e4m3(head[d])) : head[d];
  }
}

/// One warp a (token, head).
__global__ void exact_finish_heads(FinishParams params) {
  extern __shared__ float staged[];
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int number = static_cast<int>(blockIdx.y) * kHeadsOfBlock + warp;
  if (number >= params.num_heads) return;
  const ops::AttentionShape& shape = params.shape;
  const Head head = head_of(shape, number);
  const bool is_index = head.kind == HeadKind::kIndexQuery || head.kind == HeadKind::kIndexKey;
  const int dim = is_index ? shape.index_head_dim : shape.head_dim;
  float* const values = staged + warp * max(shape.head_dim, shape.index_head_dim);
  const float* const from = params.projected + blockIdx.x * params.width + head.first_row;
  for (int d = static_cast<int>(threadIdx.x % 32); d < dim; d += 32) values[d] = from[d];
  __syncwarp();

  const std::int64_t token = params.first_token + static_cast<std::int64_t>(blockIdx.x);
  const std::int32_t position = params.batch.positions[token];
  const int block_tokens = params.planes.block_tokens;
  std::byte* const row = params.planes.row(
      params.batch.pool_row(static_cast<std::int32_t>(token), position / block_tokens));
  const int slot = position % block_tokens;
  const int half = shape.rotary_dim / 2;
  switch (head.kind) {
    case HeadKind::kQuery:
      finish_head(values, params.q_norm, dim, position, params.eps, params.rope, half);
      return copy_query(values, dim, params.planes.casts_query,
                        params.q + (token * shape.num_heads + head.number) * dim);
    case HeadKind::kKey:
      finish_head(values, params.k_norm, dim, position, params.eps, params.rope, half);
      return store_vector(values, params.planes.k, head.number, row, slot);
    case HeadKind::kValue:
      return store_vector(values, params.planes.v, head.number, row, slot);
    case HeadKind::kIndexQuery:
      finish_head(values, params.index_q_norm, dim, position, params.eps, params.rope, half);
      return copy_query(values, dim, params.planes.casts_index_query,
                        params.index_q + (token * shape.num_index_heads + head.number) * dim);
    case HeadKind::kIndexKey:
      finish_head(values, params.index_k_norm, dim, position, params.eps, params.rope, half);
      return store_vector(values, params.planes.index_k, 0, row, slot);
  }
}

}  // namespace

void qkv_insert(const ops::OpContext& context, const ops::QkvInsertParams& params) {
  if (params.batch.num_tokens == 0) return;
  const ops::AttentionShape& shape = params.shape;
  const std::int64_t hidden = params.w->cols();
  const std::int64_t width = params.w->rows();
  DeviceScratch& scratch = context.cuda->scratch();
  const LoraTables adapters(params.lora, [](const ops::LoraSite& site) { return site.table; });
  const std::int64_t floats = width + adapters.rank();
  const std::int64_t chunk = std::clamp<std::int64_t>(
      scratch.num_bytes() / (floats * std::int64_t{sizeof(float)}), 1, params.batch.num_tokens);
  float* const projected = scratch.take_array<float>(chunk * floats);
  const int index_heads = shape.num_index_heads > 0 ? shape.num_index_heads + 1 : 0;
  FinishParams finish{.projected = projected,
                      .width = width,
                      .first_token = 0,
                      .num_heads = shape.num_heads + 2 * shape.num_kv_heads + index_heads,
                      .q_norm = params.q_norm,
                      .k_norm = params.k_norm,
                      .index_q_norm = params.index_q_norm,
                      .index_k_norm = params.index_k_norm,
                      .eps = params.eps,
                      .rope = params.rope,
                      .shape = shape,
                      .batch = device_batch(params.batch),
                      .planes = cache_planes(params.cache, params.layer),
                      .q = params.q,
                      .index_q = params.index_q};
  const auto staged = static_cast<std::size_t>(kHeadsOfBlock) *
                      static_cast<std::size_t>(std::max(shape.head_dim, shape.index_head_dim)) *
                      sizeof(float);
  for (std::int64_t first = 0; first < params.batch.num_tokens; first += chunk) {
    const std::int64_t count = std::min(chunk, params.batch.num_tokens - first);
    linear(context, {.x = params.h + first * hidden,
                     .x_stride = hidden,
                     .w = params.w,
                     .y = projected,
                     .y_stride = width,
                     .num_rows = count});
    add_lora(context.cuda->stream(), adapters, first,
             {.x = params.h + first * hidden,
              .x_stride = hidden,
              .y = projected,
              .y_stride = width,
              .num_rows = count},
             projected + chunk * width);
    finish.first_token = static_cast<std::int32_t>(first);
    const dim3 blocks(
        static_cast<unsigned>(count),
        static_cast<unsigned>((finish.num_heads + kHeadsOfBlock - 1) / kHeadsOfBlock));
    exact_finish_heads<<<blocks, kHeadsOfBlock * 32, staged, context.cuda->stream()>>>(finish);
    check_launch("qkv_insert");
  }
  scratch.reset();
}

}  // namespace winnow::cuda::exact
