#include "ops/cuda/backend.h"

#include <algorithm>
#include <utility>

#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/graphs.h"
#include "ops/cuda/memory.h"

namespace winnow::ops {
namespace {

/// The most that one operation takes, with room to spare: floats of every intermediate, a bf16
/// copy of its inputs, and the indexer's partial lists.
std::int64_t scratch_bytes(const WorkLimits& limits) {
  constexpr std::int64_t kFloat = sizeof(float);
  const std::int64_t linear = limits.hidden * 2 + limits.qkv_rows * kFloat;
  const std::int64_t pairs = limits.top_k_experts + 1;
  const std::int64_t moe =
      pairs * (std::max(limits.expert_width, limits.mlp_width) * 4 + limits.hidden * 2) * kFloat +
      limits.num_experts * 4 * kFloat +
      limits.hidden * kFloat;  // of what tokens with adapters had before
  const std::int64_t mlp = limits.mlp_width * 4 * kFloat;
  const std::int64_t attention =
      limits.attention.num_heads * (limits.attention.head_dim + 2) * kFloat;
  const std::int64_t a_token = std::max({linear, moe, mlp, attention});
  // Index keys of one sequence widened to 16 bits, for prefill.
  const std::int64_t keys = limits.max_positions * limits.attention.index_head_dim * 2;
  constexpr std::int64_t kPartials = std::int64_t{256} << 20;
  return limits.max_tokens * a_token + keys + kPartials;
}

}  // namespace

Backend make_cuda_backend(int device, CudaKernels kernels) {
  auto context = std::make_shared<cuda::Context>(device);
  cuda::Context* const raw = context.get();
  CUstream_st* const context_stream = raw->stream();
  const bool is_fast = kernels == CudaKernels::kFast;
  return {
      .name = is_fast ? "cuda" : "cuda-exact",
      .machine = context->name(),
      .memory = context->memory(),
      .staging = cuda::make_page_locked_memory(device),
      .cuda = std::move(context),
      .pack = [raw](std::span<const MatrixSource> stacked) { return cuda::pack(*raw, stacked); },
      .make_random = [raw](std::span<const MatrixShape> stacked,
                           std::uint64_t seed) { return cuda::make_random(*raw, stacked, seed); },
      .bind_experts =
          [raw](std::span<const MlpWeights> experts, const MlpWeights& shared) {
            return cuda::bind_experts(*raw, experts, shared);
          },
      .bind_lora =
          [raw](std::span<const LoraSite* const> sites) { return cuda::bind_lora(*raw, sites); },
      .reserve = [raw](const WorkLimits& limits) { raw->reserve_scratch(scratch_bytes(limits)); },
      .run_step = [graphs = std::make_shared<cuda::StepGraphs>(context_stream, raw->recording())](
                      const StepKey& key,
                      const std::function<void()>& step) { graphs->run(key, step); },
      .keep_rows = cuda::exact::keep_rows,
      .embed = cuda::exact::embed,
      .rms_norm = is_fast ? cuda::fast::rms_norm : cuda::exact::rms_norm,
      .linear = is_fast ? cuda::fast::linear : cuda::exact::linear,
      .lora = cuda::exact::lora,
      .qkv_insert = is_fast ? cuda::fast::qkv_insert : cuda::exact::qkv_insert,
      .index_topk = is_fast ? cuda::fast::index_topk : cuda::exact::index_topk,
      .attention = is_fast ? cuda::fast::attention : cuda::exact::attention,
      .mlp = is_fast ? cuda::fast::mlp : cuda::exact::mlp,
      .moe = is_fast ? cuda::fast::moe : cuda::exact::moe,
      .sample = cuda::sample,
      .draft_insert = cuda::exact::draft_insert,
      .draft_heads = cuda::exact::draft_heads,
      .draft_attention = is_fast ? cuda::fast::draft_attention : cuda::exact::draft_attention};
}

}  // namespace winnow::ops
