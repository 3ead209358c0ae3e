// Both operations for the reference and for the CPU kernels: the loops are the same, the norm, the
// rotation and the codec are each backend's own.
#include "ops/draft_insert/draft_insert.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "base/assert.h"
#include "formats/bulk_codecs.h"
#include "formats/cache_codec.h"
#include "ops/cpu_ops.h"
#include "ops/op_context.h"
#include "ops/rms_norm/cpu_kernel.h"
#include "ops/run_tasks.h"
#include "ops/scalar_ops.h"

namespace winnow {
namespace {

/// Below this many values (some 5 µs of one core) waking other threads costs more.
constexpr std::int64_t kParallelValues = 16 * 1024;

void rotate_row(const float* cos, const float* sin, std::int64_t half, float* x) {
  for (std::int64_t j = 0; j < half; ++j) {
    const float a = x[j];
    const float b = x[j + half];
    x[j] = std::fma(-b, sin[j], a * cos[j]);
    x[j + half] = std::fma(a, sin[j], b * cos[j]);
  }
}

constexpr ops::NormKernels kScalarKernels{.rms_norm_row = scalar::rms_norm_row,
                                          .rotate = rotate_row};

/// Norm and RoPE of one head at one position.
template <typename Params>
void finish_head(const ops::NormKernels& kernels, const Params& params, const float* norm,
                 std::int64_t position, float* head) {
  const std::int64_t half = params.shape.rotary_dim / 2;
  kernels.rms_norm_row(head, norm, params.norm_offset, params.eps, params.shape.head_dim, head);
  kernels.rotate(params.rope.cos + position * half, params.rope.sin + position * half, half, head);
}

template <typename Run>
void for_each_token(const ops::OpContext& context, std::int64_t num_tokens, std::int64_t width,
                    const Run& run) {
  ops::run_tasks(context, num_tokens, num_tokens * width >= kParallelValues, run);
}

class TokenInsert {
 public:
  TokenInsert(const ops::NormKernels& kernels, const BulkCodecs& codecs,
              const ops::DraftInsertParams& params, std::int64_t token, float* head)
      : kernels_(kernels), codecs_(codecs), params_(params), head_(head) {
    const CacheRowLayout& layout = *params.cache.layout;
    const int block_tokens = layout.shape().block_tokens;
    const auto sequence = static_cast<std::size_t>(params.batch.sequence_of[token]);
    position_ = params.batch.positions[token];
    const std::int64_t row = params.batch.sequences[sequence].block_table[position_ / block_tokens];
    row_ = params.cache.pool + row * layout.row_bytes();
    slot_ = position_ % block_tokens;
    projected_ = params.projected + token * params.num_layers * layer_width();
  }

  void run() const {
    const CacheRowLayout& layout = *params_.cache.layout;
    const int dim = params_.shape.head_dim;
    const float* x = projected_;
    for (int layer = 0; layer < params_.num_layers; ++layer) {
      for (int n = 0; n < params_.shape.num_kv_heads; ++n, x += dim) {
        std::copy_n(x, dim, head_);
        finish_head(kernels_, params_, params_.k_norm + layer * dim, position_, head_);
        store(layout.drafter_k(layer, n), head_);
      }
      for (int n = 0; n < params_.shape.num_kv_heads; ++n, x += dim) {
        store(layout.drafter_v(layer, n), x);
      }
    }
  }

 private:
  std::int64_t layer_width() const {
    return std::int64_t{2} * params_.shape.num_kv_heads * params_.shape.head_dim;
  }

  void store(const CachePlane& plane, const float* x) const {
    encode_cache_vector(plane.dtype, std::span(x, static_cast<std::size_t>(plane.dim)),
                        plane.data(row_, slot_), plane.scales(row_, slot_), codecs_);
  }

  const ops::NormKernels& kernels_;
  const BulkCodecs& codecs_;
  const ops::DraftInsertParams& params_;
  float* head_;  // [head_dim] of scratch
  std::int32_t position_ = 0;
  std::byte* row_ = nullptr;
  int slot_ = 0;
  const float* projected_ = nullptr;
};

void insert(const ops::NormKernels& kernels, const BulkCodecs& codecs,
            const ops::OpContext& context, const ops::DraftInsertParams& params) {
  const auto& drafter = params.cache.layout->shape().drafter;
  WINNOW_ASSERT(drafter && drafter->num_layers == params.num_layers &&
                    drafter->num_kv_heads == params.shape.num_kv_heads &&
                    drafter->head_dim == params.shape.head_dim,
                "the cache has the drafter's planes", params.num_layers, params.shape.head_dim);
  const std::int64_t dim = params.shape.head_dim;
  float* const heads = context.scratch->take_array<float>(context.pool->num_threads() * dim);
  for_each_token(context, params.batch.num_tokens,
                 params.num_layers * 2 * params.shape.num_kv_heads * dim,
                 [&](std::int64_t t, int thread) {
                   TokenInsert(kernels, codecs, params, t, heads + thread * dim).run();
                 });
  context.scratch->reset();
}

void finish_heads(const ops::NormKernels& kernels, const ops::OpContext& context,
                  const ops::DraftHeadsParams& params) {
  const ops::AttentionShape& shape = params.shape;
  const std::int64_t width =
      std::int64_t{shape.num_heads + 2 * shape.num_kv_heads} * shape.head_dim;
  for_each_token(context, params.batch.num_tokens, width, [&](std::int64_t t, int) {
    float* head = params.qkv + t * width;
    const std::int64_t position = params.batch.positions[t];
    for (int n = 0; n < shape.num_heads + shape.num_kv_heads; ++n, head += shape.head_dim) {
      finish_head(kernels, params, n < shape.num_heads ? params.q_norm : params.k_norm, position,
                  head);
    }
  });
}

}  // namespace

namespace scalar {

void draft_insert(const ops::OpContext& context, const ops::DraftInsertParams& params) {
  insert(kScalarKernels, kScalarCodecs, context, params);
}

void draft_heads(const ops::OpContext& context, const ops::DraftHeadsParams& params) {
  finish_heads(kScalarKernels, context, params);
}

}  // namespace scalar

namespace cpu {

void draft_insert(const Kernels& kernels, const ops::OpContext& context,
                  const ops::DraftInsertParams& params) {
  insert(*kernels.table.norm, kernels.codecs, context, params);
}

void draft_heads(const Kernels& kernels, const ops::OpContext& context,
                 const ops::DraftHeadsParams& params) {
  finish_heads(*kernels.table.norm, context, params);
}

}  // namespace cpu

}  // namespace winnow
