#include "ops/embed/embed.h"

#include <cstring>

#include "base/assert.h"
#include "formats/bf16.h"
#include "ops/op_context.h"
#include "ops/scalar_ops.h"

namespace winnow::scalar {

void embed(const ops::OpContext& context, const ops::EmbedParams& params) {
  const bool is_f32 = params.table_scheme == QuantScheme::kF32;
  WINNOW_ASSERT(is_f32 || params.table_scheme == QuantScheme::kBF16, "embedding table dtype",
                static_cast<int>(params.table_scheme));
  context.pool->parallel_for(params.num_tokens, [&](std::int64_t t, int) {
    float* const out = params.out + t * params.hidden;
    const std::int64_t begin = std::int64_t{params.tokens[t * params.token_stride]} * params.hidden;
    if (is_f32) {
      std::memcpy(out, static_cast<const float*>(params.table) + begin,
                  static_cast<std::size_t>(params.hidden) * sizeof(float));
      return;
    }
    const auto* const row = static_cast<const Bf16*>(params.table) + begin;
    for (std::int64_t i = 0; i < params.hidden; ++i) out[i] = decode_bf16(row[i]);
  });
}

}  // namespace winnow::scalar
