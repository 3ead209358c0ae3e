#include "ops/mlp/cuda_exact.h"

#include <algorithm>

#include "ops/cuda/check.h"
#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/fast_exp.h"
#include "ops/op_context.h"

namespace winnow::cuda::exact {
namespace {

constexpr int kThreads = 256;

__global__ void exact_activate(const float* gate_up, std::int64_t count, std::int64_t width,
                               ops::SwigluConstants constants, float* out) {
  const std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= count) return;
  const std::int64_t row = at / width;
  const float* const gates = gate_up + row * 2 * width;
  const std::int64_t i = at - row * width;
  const float limit = constants.limit;
  const float gate = gates[i];
  const float up = gates[width + i];
  const float g = gate < limit ? gate : limit;
  const float capped = up < limit ? up : limit;
  const float u = capped > -limit ? capped : -limit;
  const float a = g / (1.0F + ops::fast_exp(-(constants.alpha * g)));
  out[at] = (u + constants.offset) * a;
}

}  // namespace

void activate(CUstream_st* stream, const float* gate_up, std::int64_t num_rows, std::int64_t width,
              ops::SwigluConstants constants, float* out) {
  const std::int64_t count = num_rows * width;
  if (count == 0) return;
  exact_activate<<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0, stream>>>(
      gate_up, count, width, constants, out);
  check_launch("activation");
}

void mlp_in(const ops::OpContext& context, const ops::MlpParams& params,
            const MlpAdapters& adapters, float* scratch, std::int64_t chunk) {
  CUstream_st* const stream = context.cuda->stream();
  const std::int64_t width = params.weights.down->cols();
  const std::int64_t hidden = params.weights.down->rows();
  float* const gate_up = scratch;
  float* const activation = scratch + chunk * 2 * width;
  float* const u = activation + chunk * width;
  for (std::int64_t first = 0; first < params.num_tokens; first += chunk) {
    const std::int64_t count = std::min(chunk, params.num_tokens - first);
    linear(context, {.x = params.h + first * hidden,
                     .x_stride = hidden,
                     .w = params.weights.gate_up,
                     .y = gate_up,
                     .y_stride = 2 * width,
                     .num_rows = count});
    add_lora(stream, adapters.gate_up, adapters.first_token + first,
             {.x = params.h + first * hidden,
              .x_stride = hidden,
              .y = gate_up,
              .y_stride = 2 * width,
              .num_rows = count},
             u);
    activate(stream, gate_up, count, width, params.constants, activation);
    linear(context, {.x = activation,
                     .x_stride = width,
                     .w = params.weights.down,
                     .y = params.y + first * hidden,
                     .y_stride = hidden,
                     .num_rows = count,
                     .accumulate = params.accumulate});
    add_lora(stream, adapters.down, adapters.first_token + first,
             {.x = activation,
              .x_stride = width,
              .y = params.y + first * hidden,
              .y_stride = hidden,
              .num_rows = count},
             u);
  }
}

void mlp(const ops::OpContext& context, const ops::MlpParams& params) {
  if (params.num_tokens == 0) return;
  DeviceScratch& scratch = context.cuda->scratch();
  const MlpAdapters adapters(params.lora);
  const std::int64_t floats = mlp_token_floats(params.weights.down->cols(), adapters);
  const std::int64_t chunk = std::clamp<std::int64_t>(
      scratch.num_bytes() / (floats * std::int64_t{sizeof(float)}), 1, params.num_tokens);
  mlp_in(context, params, adapters, scratch.take_array<float>(chunk * floats), chunk);
  scratch.reset();
}

}  // namespace winnow::cuda::exact
