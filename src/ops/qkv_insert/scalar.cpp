#include <algorithm>
#include <cmath>
#include <span>

#include "formats/bulk_codecs.h"
#include "formats/e4m3.h"
#include "ops/op_context.h"
#include "ops/qkv_insert/qkv_insert.h"
#include "ops/scalar_ops.h"

namespace winnow::scalar {
namespace {

/// Tokens projected together, so that scratch does not grow with the batch.
constexpr std::int64_t kQkvChunk = 64;

/// Norm and RoPE of one head, in place; norm and rotation share head_dim `dim`.
void finish_head(float* head, const float* norm, std::int32_t dim, std::int64_t position,
                 const ops::QkvInsertParams& params) {
  rms_norm_row(head, norm, 1.0F, params.eps, dim, head);
  const std::int32_t half = params.shape.rotary_dim / 2;
  const float* const cos = params.rope.cos + position * half;
  const float* const sin = params.rope.sin + position * half;
  for (std::int32_t j = 0; j < half; ++j) {
    const float a = head[j];
    const float b = head[j + half];
    head[j] = std::fma(-b, sin[j], a * cos[j]);
    head[j + half] = std::fma(a, sin[j], b * cos[j]);
  }
}

void copy_query(const float* head, std::int32_t dim, bool cast, float* out) {
  for (std::int32_t d = 0; d < dim; ++d) {
    out[d] = cast ? kE4m3Values[encode_e4m3(head[d])] : head[d];
  }
}

/// The cache row and the slot in it of one position of a sequence.
struct Slot {
  std::byte* row = nullptr;
  int token = 0;

  void store(const CachePlane& plane, const float* x) const {
    encode_cache_vector(plane.dtype, std::span(x, static_cast<std::size_t>(plane.dim)),
                        plane.data(row, token), plane.scales(row, token), kScalarCodecs);
  }
};

Slot slot_of(const ops::QkvInsertParams& params, std::int64_t token) {
  const CacheRowLayout& layout = *params.cache.layout;
  const int block_tokens = layout.shape().block_tokens;
  const auto sequence = static_cast<std::size_t>(params.batch.sequence_of[token]);
  const std::int32_t position = params.batch.positions[token];
  const std::int64_t row = params.batch.sequences[sequence].block_table[position / block_tokens];
  return {.row = params.cache.pool + row * layout.row_bytes(), .token = position % block_tokens};
}

/// `projected` is one token's row of [q; k; v; index_q; index_k].
void finish_token(const ops::QkvInsertParams& params, std::int64_t token, float* projected) {
  const ops::AttentionShape& shape = params.shape;
  const CacheRowLayout& layout = *params.cache.layout;
  const CacheRowShape& row_shape = layout.shape();
  const std::int64_t position = params.batch.positions[token];
  const Slot slot = slot_of(params, token);

  float* head = projected;
  float* q = params.q + token * shape.num_heads * shape.head_dim;
  const bool cast_q = ops::casts_query(row_shape.kv_dtype, params.cache.mode);
  for (std::int32_t n = 0; n < shape.num_heads; ++n, head += shape.head_dim, q += shape.head_dim) {
    finish_head(head, params.q_norm, shape.head_dim, position, params);
    copy_query(head, shape.head_dim, cast_q, q);
  }
  for (std::int32_t n = 0; n < shape.num_kv_heads; ++n, head += shape.head_dim) {
    finish_head(head, params.k_norm, shape.head_dim, position, params);
    slot.store(layout.k(params.layer, n), head);
  }
  for (std::int32_t n = 0; n < shape.num_kv_heads; ++n, head += shape.head_dim) {
    slot.store(layout.v(params.layer, n), head);
  }
  if (shape.num_index_heads == 0) return;

  const std::int32_t dim = shape.index_head_dim;
  float* index_q = params.index_q + token * shape.num_index_heads * dim;
  const bool cast_index = ops::casts_query(row_shape.index_dtype, params.cache.mode);
  for (std::int32_t n = 0; n < shape.num_index_heads; ++n, head += dim, index_q += dim) {
    finish_head(head, params.index_q_norm, dim, position, params);
    copy_query(head, dim, cast_index, index_q);
  }
  finish_head(head, params.index_k_norm, dim, position, params);
  slot.store(layout.index_k(params.layer), head);
}

}  // namespace

void qkv_insert(const ops::OpContext& context, const ops::QkvInsertParams& params) {
  const std::int64_t hidden = params.w->cols();
  const std::int64_t width = params.w->rows();
  float* const projected = context.scratch->take_array<float>(kQkvChunk * width);
  for (std::int64_t first = 0; first < params.batch.num_tokens; first += kQkvChunk) {
    const std::int64_t count = std::min(kQkvChunk, params.batch.num_tokens - first);
    linear(context, {.x = params.h + first * hidden,
                     .x_stride = hidden,
                     .w = params.w,
                     .y = projected,
                     .y_stride = width,
                     .num_rows = count});
    if (params.lora != nullptr) {
      lora(context, {.rows = params.lora->from(first),
                     .num_rows = count,
                     .x = params.h + first * hidden,
                     .x_stride = hidden,
                     .y = projected,
                     .y_stride = width});
    }
    context.pool->parallel_for(count, [&](std::int64_t t, int) {
      finish_token(params, first + t, projected + t * width);
    });
  }
  context.scratch->reset();
}

}  // namespace winnow::scalar
