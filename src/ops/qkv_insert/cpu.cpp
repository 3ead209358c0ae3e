// Projection by `linear`'s kernels, then token by token: norm, RoPE, cast, cache insert.
#include <algorithm>
#include <cstring>
#include <span>

#include "formats/cache_codec.h"
#include "ops/cpu_ops.h"
#include "ops/linear/cpu_linear.h"
#include "ops/lora/cpu_lora.h"
#include "ops/qkv_insert/qkv_insert.h"
#include "ops/run_tasks.h"

namespace winnow::cpu {
namespace {

/// Tokens projected together: bounds the scratch (10 MB at M3's 9,856 outputs).
constexpr std::int64_t kChunkTokens = 256;

/// Below this many projected values (some 5 µs of one core) waking other threads costs more.
constexpr std::int64_t kParallelValues = 16 * 1024;

/// One token's row of [q; k; v; index_q; index_k] on its way to q, index_q and the cache.
class TokenInsert {
 public:
  TokenInsert(const Kernels& kernels, const ops::QkvInsertParams& params, std::int64_t token)
      : kernels_(kernels), params_(params), token_(token) {
    const CacheRowLayout& layout = *params.cache.layout;
    const int block_tokens = layout.shape().block_tokens;
    const auto sequence = static_cast<std::size_t>(params.batch.sequence_of[token]);
    const std::int32_t position = params.batch.positions[token];
    const std::int64_t row = params.batch.sequences[sequence].block_table[position / block_tokens];
    row_ = params.cache.pool + row * layout.row_bytes();
    slot_ = position % block_tokens;
    const std::int64_t half = params.shape.rotary_dim / 2;
    cos_ = params.rope.cos + position * half;
    sin_ = params.rope.sin + position * half;
  }

  void run(float* head) const {
    const ops::AttentionShape& shape = params_.shape;
    const CacheRowLayout& layout = *params_.cache.layout;
    const int dim = shape.head_dim;
    const bool cast = ops::casts_query(layout.shape().kv_dtype, params_.cache.mode);
    float* q = params_.q + token_ * shape.num_heads * dim;
    for (int n = 0; n < shape.num_heads; ++n, head += dim, q += dim) {
      norm_and_rotate(params_.q_norm, dim, head);
      store_query(head, dim, cast, q);
    }
    for (int n = 0; n < shape.num_kv_heads; ++n, head += dim) {
      norm_and_rotate(params_.k_norm, dim, head);
      store(layout.k(params_.layer, n), head);
    }
    for (int n = 0; n < shape.num_kv_heads; ++n, head += dim) {
      store(layout.v(params_.layer, n), head);
    }
    if (shape.num_index_heads > 0) insert_index(head);
  }

 private:
  void insert_index(float* head) const {
    const ops::AttentionShape& shape = params_.shape;
    const CacheRowLayout& layout = *params_.cache.layout;
    const int dim = shape.index_head_dim;
    const bool cast = ops::casts_query(layout.shape().index_dtype, params_.cache.mode);
    float* q = params_.index_q + token_ * shape.num_index_heads * dim;
    for (int n = 0; n < shape.num_index_heads; ++n, head += dim, q += dim) {
      norm_and_rotate(params_.index_q_norm, dim, head);
      store_query(head, dim, cast, q);
    }
    norm_and_rotate(params_.index_k_norm, dim, head);
    store(layout.index_k(params_.layer), head);
  }

  void norm_and_rotate(const float* weight, int dim, float* head) const {
    kernels_.table.norm->rms_norm_row(head, weight, 1.0F, params_.eps, dim, head);
    kernels_.table.norm->rotate(cos_, sin_, params_.shape.rotary_dim / 2, head);
  }

  /// To E4M3 and back, a few values at a time through the stack.
  void store_query(const float* head, int dim, bool cast, float* out) const {
    if (!cast) {
      std::memcpy(out, head, static_cast<std::size_t>(dim) * sizeof(float));
      return;
    }
    constexpr int kStep = 256;
    std::uint8_t codes[kStep];
    for (int d = 0; d < dim; d += kStep) {
      const int count = std::min(kStep, dim - d);
      kernels_.codecs.encode_e4m3(head + d, codes, count);
      kernels_.codecs.decode_e4m3(codes, out + d, count);
    }
  }

  void store(const CachePlane& plane, const float* x) const {
    encode_cache_vector(plane.dtype, std::span(x, static_cast<std::size_t>(plane.dim)),
                        plane.data(row_, slot_), plane.scales(row_, slot_), kernels_.codecs);
  }

  const Kernels& kernels_;
  const ops::QkvInsertParams& params_;
  std::int64_t token_;
  std::byte* row_;
  int slot_;
  const float* cos_;
  const float* sin_;
};

}  // namespace

void qkv_insert(const Kernels& kernels, const ops::OpContext& context,
                const ops::QkvInsertParams& params) {
  const std::int64_t hidden = params.w->cols();
  const std::int64_t width = params.w->rows();
  for (std::int64_t first = 0; first < params.batch.num_tokens; first += kChunkTokens) {
    const std::int64_t count = std::min(kChunkTokens, params.batch.num_tokens - first);
    float* const projected = context.scratch->take_array<float>(count * width);
    const ops::LinearParams product{.x = params.h + first * hidden,
                                    .x_stride = hidden,
                                    .w = params.w,
                                    .y = projected,
                                    .y_stride = width,
                                    .num_rows = count};
    if (params.lora == nullptr) {
      multiply(kernels, context, std::span(&product, 1));
    } else {
      multiply_with_lora(kernels, context, product, params.lora->from(first));
    }
    const auto insert = [&](std::int64_t t, int) {
      TokenInsert(kernels, params, first + t).run(projected + t * width);
    };
    ops::run_tasks(context, count, count * width >= kParallelValues, insert);
    context.scratch->reset();
  }
}

}  // namespace winnow::cpu
