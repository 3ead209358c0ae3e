#include <array>
#include <cmath>

#include "ops/op_context.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/scalar_ops.h"
#include "ops/target_clones.h"

namespace winnow::scalar {
namespace {

constexpr int kLanes = 16;

}  // namespace

WINNOW_FMA_CLONES
void rms_norm_row(const float* x, const float* weight, float offset, float eps, std::int64_t width,
                  float* out) {
  std::array<float, kLanes> lanes{};
  for (std::int64_t begin = 0; begin < width; begin += kLanes) {
    const std::int64_t count = width - begin < kLanes ? width - begin : kLanes;
    for (std::int64_t i = 0; i < count; ++i) {
      float& lane = lanes[static_cast<std::size_t>(i)];
      lane = std::fma(x[begin + i], x[begin + i], lane);
    }
  }
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  const float inverse = 1.0F / std::sqrt(lanes[0] / static_cast<float>(width) + eps);
  for (std::int64_t i = 0; i < width; ++i) out[i] = (x[i] * inverse) * (offset + weight[i]);
}

void rms_norm(const ops::OpContext& context, const ops::RmsNormParams& params) {
  context.pool->parallel_for(params.num_rows, [&](std::int64_t row, int) {
    rms_norm_row(params.x + row * params.width, params.weight, params.offset, params.eps,
                 params.width, params.out + row * params.width);
  });
}

}  // namespace winnow::scalar
