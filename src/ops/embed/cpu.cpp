#include <cstring>

#include "base/assert.h"
#include "formats/bf16.h"
#include "ops/cpu_ops.h"
#include "ops/embed/embed.h"
#include "ops/run_tasks.h"

namespace winnow::cpu {

// A copy of rows, so bound by memory: a thread wake-up is worth it from some 100 KiB on.
void embed(const Kernels& kernels, const ops::OpContext& context, const ops::EmbedParams& params) {
  const bool is_f32 = params.table_scheme == QuantScheme::kF32;
  WINNOW_ASSERT(is_f32 || params.table_scheme == QuantScheme::kBF16, "embedding table dtype",
                static_cast<int>(params.table_scheme));
  const auto run = [&](std::int64_t t, int) {
    float* const out = params.out + t * params.hidden;
    const std::int64_t begin = std::int64_t{params.tokens[t * params.token_stride]} * params.hidden;
    if (is_f32) {
      std::memcpy(out, static_cast<const float*>(params.table) + begin,
                  static_cast<std::size_t>(params.hidden) * sizeof(float));
    } else {
      kernels.codecs.decode_bf16(static_cast<const Bf16*>(params.table) + begin, out,
                                 params.hidden);
    }
  };
  constexpr std::int64_t kParallelValues = 64 * 1024;
  ops::run_tasks(context, params.num_tokens, params.num_tokens * params.hidden >= kParallelValues,
                 run);
}

}  // namespace winnow::cpu
