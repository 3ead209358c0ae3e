// Both operations in their written order, a warp a head. `fast` takes them too: their time is the
// launch's, and norms must not change with the kernel set.
#include <algorithm>

#include "ops/cuda/check.h"
#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/draft_insert/draft_insert.h"
#include "ops/op_context.h"
#include "ops/qkv_insert/cuda_exact_head.cuh"

namespace winnow::cuda::exact {
namespace {

constexpr int kHeadsOfBlock = 4;  // a warp each

struct InsertParams {
  const float* projected = nullptr;
  const float* k_norm = nullptr;
  float norm_offset = 0.0F;
  float eps = 0.0F;
  ops::RopeTable rope;
  int half = 0;  // of the rotated dims
  int num_kv_heads = 0;
  int dim = 0;
  int num_heads = 0;  // keys and values of all layers
  DeviceBatch batch;
  CachePlanes planes;             // of layer 0
  std::int64_t layer_stride = 0;  // bytes from one layer's planes to the next one's
};

__device__ inline float* copy_head(const float* from, int dim, float* staged) {
  float* const head = staged + threadIdx.x / 32 * static_cast<unsigned>(dim);
  for (int d = static_cast<int>(threadIdx.x % 32); d < dim; d += 32) head[d] = from[d];
  __syncwarp();
  return head;
}

__global__ void exact_draft_insert(const InsertParams params) {
  extern __shared__ float staged[];
  ptx::griddepcontrol_wait();
  const int number = static_cast<int>(blockIdx.y * kHeadsOfBlock + threadIdx.x / 32);
  if (number >= params.num_heads) return;
  const auto token = static_cast<std::int32_t>(blockIdx.x);
  const std::int64_t row = std::int64_t{token} * params.num_heads + number;
  float* const head = copy_head(params.projected + row * params.dim, params.dim, staged);
  const int layer = number / (2 * params.num_kv_heads);
  const int of_layer = number % (2 * params.num_kv_heads);
  const bool is_key = of_layer < params.num_kv_heads;
  const std::int32_t position = params.batch.positions[token];
  if (is_key) {
    finish_head(head, params.k_norm + layer * params.dim, params.dim, position, params.eps,
                params.rope, params.half, params.norm_offset);
  }
  const int block_tokens = params.planes.block_tokens;
  std::byte* const pool_row =
      params.planes.row(params.batch.pool_row(token, position / block_tokens));
  store_vector(head, is_key ? params.planes.k : params.planes.v,
               is_key ? of_layer : of_layer - params.num_kv_heads,
               pool_row + layer * params.layer_stride, position % block_tokens);
}

struct HeadsParams {
  float* qkv = nullptr;
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  float norm_offset = 0.0F;
  float eps = 0.0F;
  ops::RopeTable rope;
  ops::AttentionShape shape;
  const std::int32_t* positions = nullptr;
};

__global__ void exact_draft_heads(const HeadsParams params) {
  extern __shared__ float staged[];
  ptx::griddepcontrol_wait();
  const ops::AttentionShape& shape = params.shape;
  const int number = static_cast<int>(blockIdx.y * kHeadsOfBlock + threadIdx.x / 32);
  if (number >= shape.num_heads + shape.num_kv_heads) return;
  const int dim = shape.head_dim;
  float* const place =
      params.qkv +
      (std::int64_t{blockIdx.x} * (shape.num_heads + 2 * shape.num_kv_heads) + number) * dim;
  float* const head = copy_head(place, dim, staged);
  finish_head(head, number < shape.num_heads ? params.q_norm : params.k_norm, dim,
              params.positions[blockIdx.x], params.eps, params.rope, shape.rotary_dim / 2,
              params.norm_offset);
  for (int d = static_cast<int>(threadIdx.x % 32); d < dim; d += 32) place[d] = head[d];
}

LaunchShape shape_of(std::int32_t num_tokens, int num_heads, int dim) {
  return {.grid = dim3(static_cast<unsigned>(num_tokens),
                       static_cast<unsigned>((num_heads + kHeadsOfBlock - 1) / kHeadsOfBlock)),
          .block = dim3(kHeadsOfBlock * 32),
          .shared_bytes = static_cast<std::size_t>(kHeadsOfBlock * dim) * sizeof(float)};
}

}  // namespace

void draft_insert(const ops::OpContext& context, const ops::DraftInsertParams& params) {
  if (params.batch.num_tokens == 0) return;
  const CachePlanes planes = drafter_planes(params.cache, 0);
  const int num_heads = params.num_layers * 2 * params.shape.num_kv_heads;
  const InsertParams kernel{
      .projected = params.projected,
      .k_norm = params.k_norm,
      .norm_offset = params.norm_offset,
      .eps = params.eps,
      .rope = params.rope,
      .half = params.shape.rotary_dim / 2,
      .num_kv_heads = params.shape.num_kv_heads,
      .dim = params.shape.head_dim,
      .num_heads = num_heads,
      .batch = device_batch(params.batch),
      .planes = planes,
      .layer_stride = params.num_layers > 1
                          ? drafter_planes(params.cache, 1).k.data_offset - planes.k.data_offset
                          : 0};
  launch_overlapping(exact_draft_insert, shape_of(params.batch.num_tokens, num_heads, kernel.dim),
                     context.cuda->stream(), kernel, "draft_insert");
}

void draft_heads(const ops::OpContext& context, const ops::DraftHeadsParams& params) {
  if (params.batch.num_tokens == 0) return;
  launch_overlapping(
      exact_draft_heads,
      shape_of(params.batch.num_tokens, params.shape.num_heads + params.shape.num_kv_heads,
               params.shape.head_dim),
      context.cuda->stream(),
      HeadsParams{.qkv = params.qkv,
                  .q_norm = params.q_norm,
                  .k_norm = params.k_norm,
                  .norm_offset = params.norm_offset,
                  .eps = params.eps,
                  .rope = params.rope,
                  .shape = params.shape,
                  .positions = params.batch.positions},
      "draft_heads");
}

}  // namespace winnow::cuda::exact
