#include "ops/moe/moe.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/fast_exp.h"
#include "ops/op_context.h"
#include "ops/scalar_ops.h"
#include "ops/target_clones.h"

namespace winnow::scalar {
namespace {

/// Tokens routed and combined together, so that scratch does not grow with the batch.
constexpr std::int64_t kMoeChunk = 64;

struct Workspace {
  float* logits = nullptr;         // [chunk][num_experts]; becomes sigmoid values
  std::int32_t* chosen = nullptr;  // [chunk][top_k]
  float* weights = nullptr;        // [chunk][top_k]
  float* gathered = nullptr;       // [chunk][hidden] inputs of one expert
  float* expert_out = nullptr;     // [chunk][hidden] its outputs
  float* routed = nullptr;         // [chunk][hidden] Σ_e w_e · expert_e
  float* shared = nullptr;         // [chunk][hidden]
  float* mlp = nullptr;
};

std::int64_t largest_width(const ops::MoeParams& params) {
  std::int64_t width = params.shared.gate_up != nullptr ? params.shared.down->cols() : 0;
  for (const ops::MlpWeights& expert : params.experts) width = std::max(width, expert.down->cols());
  return width;
}

Workspace take_workspace(ops::Scratch& scratch, const ops::MoeParams& params) {
  const std::int64_t hidden = params.router->cols();
  return {.logits = scratch.take_array<float>(kMoeChunk * params.router->rows()),
          .chosen = scratch.take_array<std::int32_t>(kMoeChunk * params.top_k),
          .weights = scratch.take_array<float>(kMoeChunk * params.top_k),
          .gathered = scratch.take_array<float>(kMoeChunk * hidden),
          .expert_out = scratch.take_array<float>(kMoeChunk * hidden),
          .routed = scratch.take_array<float>(kMoeChunk * hidden),
          .shared = scratch.take_array<float>(kMoeChunk * hidden),
          .mlp = scratch.take_array<float>(mlp_workspace_floats(largest_width(params)))};
}

/// The top_k experts of one token by sigmoid + bias, ascending id, and their weights. `scores`
/// holds the router's logits and is overwritten with their sigmoids.
WINNOW_FMA_CLONES
void choose_experts(float* scores, const float* bias, std::int32_t num_experts, std::int32_t top_k,
                    std::int32_t* chosen, float* weights) {
  for (std::int32_t e = 0; e < num_experts; ++e) scores[e] = ops::fast_sigmoid(scores[e]);
  const auto rank = [&](std::int32_t e) {
    const float biased = scores[e] + bias[e];
    return std::isnan(biased) ? -std::numeric_limits<float>::infinity() : biased;
  };
  for (std::int32_t slot = 0; slot < top_k; ++slot) {
    std::int32_t best = -1;
    for (std::int32_t e = 0; e < num_experts; ++e) {
      if (std::find(chosen, chosen + slot, e) != chosen + slot) continue;
      if (best < 0 || rank(e) > rank(best)) best = e;
    }
    chosen[slot] = best;
  }
  std::sort(chosen, chosen + top_k);
  float sum = 0.0F;
  for (std::int32_t slot = 0; slot < top_k; ++slot) sum += scores[chosen[slot]];
  for (std::int32_t slot = 0; slot < top_k; ++slot) weights[slot] = scores[chosen[slot]] / sum;
}

WINNOW_FMA_CLONES
void add_scaled(float factor, const float* x, std::int64_t count, float* y) {
  for (std::int64_t i = 0; i < count; ++i) y[i] = std::fma(factor, x[i], y[i]);
}

/// y += factor · routed + shared, one fused multiply-add and one addition.
WINNOW_FMA_CLONES
void combine(float factor, const float* routed, const float* shared, std::int64_t count, float* y) {
  for (std::int64_t i = 0; i < count; ++i) y[i] += std::fma(factor, routed[i], shared[i]);
}

/// Adapters in one feed-forward block: what LoraRows<LoraMlp> points to.
struct BlockAdapters {
  std::vector<const ops::LoraMlp*> of_adapter;
  std::vector<std::int32_t> adapter_of;  // by row of the block
};

/// Of expert `e`, or of the shared one (-1); rows are added by the caller.
BlockAdapters adapters_of(const ops::LoraRows<ops::LoraMoe>& lora, std::int32_t e) {
  BlockAdapters block;
  for (const ops::LoraMoe* const adapter : lora.adapters) {
    const bool has_any = adapter != nullptr && (e < 0 || !adapter->experts.empty());
    block.of_adapter.push_back(!has_any ? nullptr
                               : e < 0  ? &adapter->shared
                                        : &adapter->experts[static_cast<std::size_t>(e)]);
  }
  return block;
}

/// Runs expert `e` on the tokens of the chunk that chose it and adds its share to `routed`.
/// `lora` (may be null) is of the chunk's tokens.
void run_expert(const ops::OpContext& context, const ops::MoeParams& params, const Workspace& work,
                const float* h, std::int64_t count, std::int32_t e,
                const ops::LoraRows<ops::LoraMoe>* lora) {
  const std::int64_t hidden = params.router->cols();
  BlockAdapters adapters;
  if (lora != nullptr) adapters = adapters_of(*lora, e);
  std::int64_t rows = 0;
  const auto slot_of = [&](std::int64_t t) {
    const std::int32_t* const chosen = work.chosen + t * params.top_k;
    const std::int32_t* const found = std::find(chosen, chosen + params.top_k, e);
    return found == chosen + params.top_k ? -1 : found - chosen;
  };
  for (std::int64_t t = 0; t < count; ++t) {
    if (slot_of(t) < 0) continue;
    if (lora != nullptr) adapters.adapter_of.push_back(lora->adapter_of[t]);
    std::copy_n(h + t * hidden, hidden, work.gathered + rows++ * hidden);
  }
  if (rows == 0) return;
  const ops::LoraRows<ops::LoraMlp> lora_rows{.adapter_of = adapters.adapter_of.data(),
                                              .adapters = adapters.of_adapter};
  mlp_in(context,
         {.h = work.gathered,
          .num_tokens = rows,
          .weights = params.experts[static_cast<std::size_t>(e)],
          .constants = params.constants,
          .y = work.expert_out,
          .lora = lora == nullptr ? nullptr : &lora_rows},
         work.mlp);
  rows = 0;
  for (std::int64_t t = 0; t < count; ++t) {
    const std::int64_t slot = slot_of(t);
    if (slot < 0) continue;
    add_scaled(work.weights[t * params.top_k + slot], work.expert_out + rows++ * hidden, hidden,
               work.routed + t * hidden);
  }
}

void run_chunk(const ops::OpContext& context, const ops::MoeParams& params, const Workspace& work,
               std::int64_t first, std::int64_t count) {
  const std::int64_t hidden = params.router->cols();
  const auto num_experts = static_cast<std::int32_t>(params.router->rows());
  const float* const h = params.h + first * hidden;
  linear(context, {.x = h,
                   .x_stride = hidden,
                   .w = params.router,
                   .y = work.logits,
                   .y_stride = num_experts,
                   .num_rows = count});
  context.pool->parallel_for(count, [&](std::int64_t t, int) {
    choose_experts(work.logits + t * num_experts, params.router_bias, num_experts, params.top_k,
                   work.chosen + t * params.top_k, work.weights + t * params.top_k);
  });

  std::fill_n(work.routed, count * hidden, 0.0F);
  ops::LoraRows<ops::LoraMoe> lora;
  if (params.lora != nullptr) lora = params.lora->from(first);
  const ops::LoraRows<ops::LoraMoe>* const chunk_lora = params.lora == nullptr ? nullptr : &lora;
  for (std::int32_t e = 0; e < num_experts; ++e) {
    run_expert(context, params, work, h, count, e, chunk_lora);
  }
  if (params.shared.gate_up != nullptr) {
    BlockAdapters adapters;
    if (params.lora != nullptr) adapters = adapters_of(lora, -1);
    const ops::LoraRows<ops::LoraMlp> shared_lora{.adapter_of = lora.adapter_of,
                                                  .adapters = adapters.of_adapter};
    mlp_in(context,
           {.h = h,
            .num_tokens = count,
            .weights = params.shared,
            .constants = params.constants,
            .y = work.shared,
            .lora = params.lora == nullptr ? nullptr : &shared_lora},
           work.mlp);
  } else {
    std::fill_n(work.shared, count * hidden, 0.0F);
  }
  combine(params.routed_scale, work.routed, work.shared, count * hidden, params.y + first * hidden);

  const std::int64_t at = first * params.top_k;
  const std::int64_t choices = count * params.top_k;
  if (params.chosen_experts != nullptr)
    std::copy_n(work.chosen, choices, params.chosen_experts + at);
  if (params.chosen_weights != nullptr) {
    std::copy_n(work.weights, choices, params.chosen_weights + at);
  }
}

}  // namespace

void moe(const ops::OpContext& context, const ops::MoeParams& params) {
  const Workspace work = take_workspace(*context.scratch, params);
  for (std::int64_t first = 0; first < params.num_tokens; first += kMoeChunk) {
    run_chunk(context, params, work, first, std::min(kMoeChunk, params.num_tokens - first));
  }
  context.scratch->reset();
}

}  // namespace winnow::scalar
