#include "formats/bf16.h"
#include "ops/cuda/check.h"
#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/embed/embed.h"
#include "ops/op_context.h"

namespace winnow::cuda::exact {
namespace {

constexpr int kThreads = 256;
constexpr unsigned kBlocksPerRow = 8;  // one token alone is a chain of loads otherwise

__global__ void exact_embed(ops::EmbedParams params) {
  const std::int64_t t = blockIdx.x;
  const std::int64_t begin = std::int64_t{params.tokens[t * params.token_stride]} * params.hidden;
  float* const out = params.out + t * params.hidden;
  const std::int64_t first = std::int64_t{blockIdx.y} * kThreads + threadIdx.x;
  for (std::int64_t i = first; i < params.hidden; i += std::int64_t{gridDim.y} * kThreads) {
    out[i] = params.table_scheme == QuantScheme::kF32
                 ? static_cast<const float*>(params.table)[begin + i]
                 : decode_bf16(static_cast<const Bf16*>(params.table)[begin + i]);
  }
}

}  // namespace

void embed(const ops::OpContext& context, const ops::EmbedParams& params) {
  if (params.num_tokens == 0) return;
  const dim3 grid(static_cast<unsigned>(params.num_tokens), kBlocksPerRow);
  exact_embed<<<grid, kThreads, 0, context.cuda->stream()>>>(params);
  check_launch("embed");
}

}  // namespace winnow::cuda::exact
