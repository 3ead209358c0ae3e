// Both projections as linear/cuda_fast.h has them, the activation between them and what adapters
// add as exact:: has it.
#include <algorithm>

#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/ptx_sm90.cuh"
#include "ops/fast_exp.h"
#include "ops/linear/cuda_fast.h"
#include "ops/mlp/cuda_exact.h"
#include "ops/mlp/mlp.h"
#include "ops/op_context.h"

namespace winnow::cuda {
namespace {

constexpr int kThreads = 256;

struct ActivateParams {
  const float* gate_up = nullptr;  // [rows][2 · width]
  float* out = nullptr;            // [rows][width]
  std::int64_t count = 0;          // of out
  std::int64_t width = 0;
  ops::SwigluConstants constants;
};

/// mlp.h's activation, one fp32 rounding a step.
__global__ void __launch_bounds__(kThreads) sm90_activate(const ActivateParams p) {
  ptx::griddepcontrol_wait();
  const std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= p.count) return;
  const std::int64_t row = at / p.width;
  const float* const gates = p.gate_up + row * 2 * p.width + (at - row * p.width);
  const float limit = p.constants.limit;
  const float gate = gates[0];
  const float up = gates[p.width];
  const float g = gate < limit ? gate : limit;
  const float capped = up < limit ? up : limit;
  const float u = capped > -limit ? capped : -limit;
  const float a = g / (1.0F + ops::fast_exp(-(p.constants.alpha * g)));
  p.out[at] = (u + p.constants.offset) * a;
}

}  // namespace

namespace fast {

void mlp(const ops::OpContext& context, const ops::MlpParams& params) {
  const FastParts gate_up = fast_parts(*params.weights.gate_up);
  const FastParts down = fast_parts(*params.weights.down);
  if (gate_up.count == 0 || down.count == 0) return exact::mlp(context, params);
  if (params.num_tokens == 0) return;

  const std::int64_t width = params.weights.down->cols();
  const std::int64_t hidden = params.weights.down->rows();
  DeviceScratch& scratch = context.cuda->scratch();
  const exact::MlpAdapters adapters(params.lora);
  const std::int64_t num_chunks = std::max(gate_up.num_chunks(), down.num_chunks());
  const ProjectionRound round =
      plan_round(*context.cuda, params.num_tokens, num_chunks,
                 exact::mlp_token_floats(width, adapters) * std::int64_t{sizeof(float)});
  float* const gates = scratch.take_array<float>(round.num_tokens * 2 * width);
  float* const activation = scratch.take_array<float>(round.num_tokens * width);
  float* const u = scratch.take_array<float>(round.num_tokens * adapters.rank());
  std::byte* const workspace = scratch.take(round.workspace_bytes);

  for (std::int64_t first = 0; first < params.num_tokens; first += round.num_tokens) {
    const std::int64_t count = std::min(round.num_tokens, params.num_tokens - first);
    project(*context.cuda,
            {.w = gate_up,
             .x = params.h + first * hidden,
             .x_stride = hidden,
             .y = gates,
             .y_stride = 2 * width,
             .num_tokens = count},
            workspace, round.workspace_bytes);
    exact::add_lora(context.cuda->stream(), adapters.gate_up, first,
                    {.x = params.h + first * hidden,
                     .x_stride = hidden,
                     .y = gates,
                     .y_stride = 2 * width,
                     .num_rows = count},
                    u);
    const ActivateParams activate{.gate_up = gates,
                                  .out = activation,
                                  .count = count * width,
                                  .width = width,
                                  .constants = params.constants};
    launch_overlapping(
        sm90_activate,
        {.grid = dim3(static_cast<unsigned>((activate.count + kThreads - 1) / kThreads)),
         .block = dim3(kThreads)},
        context.cuda->stream(), activate, "sm90_activate");
    project(*context.cuda,
            {.w = down,
             .x = activation,
             .x_stride = width,
             .y = params.y + first * hidden,
             .y_stride = hidden,
             .num_tokens = count,
             .accumulate = params.accumulate},
            workspace, round.workspace_bytes);
    exact::add_lora(context.cuda->stream(), adapters.down, first,
                    {.x = activation,
                     .x_stride = width,
                     .y = params.y + first * hidden,
                     .y_stride = hidden,
                     .num_rows = count},
                    u);
  }
  scratch.reset();
}

}  // namespace fast
}  // namespace winnow::cuda
