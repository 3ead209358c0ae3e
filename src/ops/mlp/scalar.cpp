#include <algorithm>
#include <vector>

#include "ops/fast_exp.h"
#include "ops/mlp/mlp.h"
#include "ops/op_context.h"
#include "ops/scalar_ops.h"
#include "ops/target_clones.h"

namespace winnow::scalar {
namespace {

/// out[i] = (u + offset) · g · sigmoid(alpha · g); gate_up holds `width` gates, then as many ups.
WINNOW_FMA_CLONES
void activate_row(const float* gate_up, std::int64_t width, ops::SwigluConstants constants,
                  float* out) {
  const float limit = constants.limit;
  for (std::int64_t i = 0; i < width; ++i) {
    const float gate = gate_up[i];
    const float up = gate_up[width + i];
    const float g = gate < limit ? gate : limit;
    const float capped = up < limit ? up : limit;
    const float u = capped > -limit ? capped : -limit;
    const float a = g / (1.0F + ops::fast_exp(-(constants.alpha * g)));
    out[i] = (u + constants.offset) * a;
  }
}

/// What the adapters add at `site` for rows [first, first + rows.num_rows) of a block.
void add_lora(const ops::OpContext& context, const ops::MlpParams& params, std::int64_t first,
              ops::LoraSite ops::LoraMlp::*site, ops::LoraParams rows) {
  if (params.lora == nullptr) return;
  std::vector<const ops::LoraSite*> sites;
  for (const ops::LoraMlp* const adapter : params.lora->adapters) {
    sites.push_back(adapter == nullptr ? nullptr : &(adapter->*site));
  }
  rows.rows = {.adapter_of = params.lora->adapter_of + first, .adapters = sites};
  lora(context, rows);
}

}  // namespace

std::int64_t mlp_workspace_floats(std::int64_t width) { return kMlpChunk * 3 * width; }

void mlp_in(const ops::OpContext& context, const ops::MlpParams& params, float* workspace) {
  const std::int64_t width = params.weights.down->cols();
  const std::int64_t hidden = params.weights.down->rows();
  float* const gate_up = workspace;
  float* const activation = workspace + kMlpChunk * 2 * width;
  for (std::int64_t first = 0; first < params.num_tokens; first += kMlpChunk) {
    const std::int64_t count = std::min(kMlpChunk, params.num_tokens - first);
    linear(context, {.x = params.h + first * hidden,
                     .x_stride = hidden,
                     .w = params.weights.gate_up,
                     .y = gate_up,
                     .y_stride = 2 * width,
                     .num_rows = count});
    add_lora(context, params, first, &ops::LoraMlp::gate_up,
             {.num_rows = count,
              .x = params.h + first * hidden,
              .x_stride = hidden,
              .y = gate_up,
              .y_stride = 2 * width});
    context.pool->parallel_for(count, [&](std::int64_t t, int) {
      activate_row(gate_up + t * 2 * width, width, params.constants, activation + t * width);
    });
    linear(context, {.x = activation,
                     .x_stride = width,
                     .w = params.weights.down,
                     .y = params.y + first * hidden,
                     .y_stride = hidden,
                     .num_rows = count,
                     .accumulate = params.accumulate});
    add_lora(context, params, first, &ops::LoraMlp::down,
             {.num_rows = count,
              .x = activation,
              .x_stride = width,
              .y = params.y + first * hidden,
              .y_stride = hidden});
  }
}

void mlp(const ops::OpContext& context, const ops::MlpParams& params) {
  const std::int64_t width = params.weights.down->cols();
  mlp_in(context, params, context.scratch->take_array<float>(mlp_workspace_floats(width)));
  context.scratch->reset();
}

}  // namespace winnow::scalar
