// Which MoE layers the fast kernels take, and the scratch they get. They know nothing of adapters:
// tokens whose adapter adds something in the layer are put back and go through the exact kernels,
// so that what a token gets depends on its own adapter alone.
#include <algorithm>

#include "ops/cuda/check.h"
#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/moe/cuda_adapted.h"
#include "ops/moe/cuda_experts.h"
#include "ops/moe/cuda_fast.h"
#include "ops/moe/cuda_fast_scratch.h"
#include "ops/moe/moe.h"

namespace winnow::cuda::fast {
namespace {

bool is_whole(std::int64_t size) { return size > 0 && size % kChunkCols == 0; }

bool fits(const MatrixPart& part) { return part.fits_bf16 && part.scheme != QuantScheme::kBF16; }

bool fits(const DeviceMlp& mlp) {
  return fits(mlp.gate) && fits(mlp.up) && fits(mlp.down) && mlp.gate.scheme == mlp.up.scheme;
}

/// The router's one part; null when it is not what the kernels read.
const MatrixPart* router_part(const ops::MoeParams& params) {
  const auto& router = *static_cast<const CudaMatrix*>(params.router);
  const auto parts = router.parts();
  return parts.size() == 1 && parts[0].scheme == QuantScheme::kF32 ? parts.data() : nullptr;
}

bool is_fast(const ops::MoeParams& params, const CudaExperts& experts) {
  return params.constants.offset == 1.0F && router_part(params) != nullptr &&
         is_whole(experts.hidden()) && is_whole(experts.width()) &&
         (!experts.has_shared() || is_whole(experts.shared_width())) &&
         experts.num_experts() <= fast_moe::kMaxExperts && params.top_k <= fast_moe::kMaxTopK &&
         params.router->rows() == experts.num_experts() &&
         std::ranges::all_of(experts.host(), [](const DeviceMlp& mlp) { return fits(mlp); });
}

/// Tokens that are wanted, and y as the call found it.
struct Kept {
  std::int32_t* wanted = nullptr;
  float* y = nullptr;
};

Kept keep(Context& cuda, const ops::MoeParams& params, const MoeAdapters& adapters) {
  const std::int64_t count = params.num_tokens * params.router->cols();
  const Kept kept{.wanted = cuda.scratch().take_array<std::int32_t>(params.num_tokens),
                  .y = cuda.scratch().take_array<float>(count)};
  check(cudaMemcpyAsync(kept.y, params.y, static_cast<std::size_t>(count) * sizeof(float),
                        cudaMemcpyDeviceToDevice, cuda.stream()),
        "keeping what tokens with adapters had");
  mark_adapted(cuda.stream(), adapters, params.num_tokens, kept.wanted);
  return kept;
}

}  // namespace

void moe(const ops::OpContext& context, const ops::MoeParams& params) {
  if (params.num_tokens == 0) return;
  const auto& experts = *static_cast<const CudaExperts*>(params.table);
  if (!is_fast(params, experts)) return exact::moe(context, params);
  Context& cuda = *context.cuda;
  const fast_moe::Layer layer{
      .h = params.h,
      .num_tokens = static_cast<int>(params.num_tokens),
      .router = router_part(params)->data,
      .router_bias = params.router_bias,
      .experts = experts.device(),
      .num_experts = static_cast<int>(experts.num_experts()),
      .hidden = static_cast<int>(experts.hidden()),
      .width = static_cast<int>(experts.width()),
      .shared_width = static_cast<int>(experts.shared_width()),
      .top_k = params.top_k,
      .routed_scale = params.routed_scale,
      .alpha = params.constants.alpha,
      .limit = params.constants.limit,
      .y = params.y,
      .chosen_experts = params.chosen_experts,
      .chosen_weights = params.chosen_weights,
  };
  const MoeAdapters adapters(params.lora);
  Kept kept;
  if (adapters.add_anything()) kept = keep(cuda, params, adapters);
  const std::int64_t taken = cuda.scratch().mark();
  fast_moe::Workspace work =
      fast_moe::carve(layer, [&](std::int64_t bytes) { return cuda.scratch().take(bytes); });
  work.counters = cuda.counters();
  fast_moe::run(layer, work, cuda.num_multiprocessors(), cuda.stream());
  if (adapters.add_anything()) {
    cuda.scratch().rewind(taken);
    copy_wanted(cuda.stream(), kept.wanted, params.num_tokens, params.router->cols(), kept.y,
                params.y);
    exact::moe_of(context, params, adapters, kept.wanted);
  }
  cuda.scratch().reset();
}

}  // namespace winnow::cuda::fast
