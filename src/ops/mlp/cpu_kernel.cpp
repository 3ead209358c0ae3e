#include "ops/mlp/cpu_kernel.h"

#include "ops/x86/vec.h"

namespace winnow::ops::WINNOW_ISA {
namespace {

/// Sixteen activations; min and max return their second operand for NaN, as mlp.h asks.
[[gnu::always_inline]] inline Vec activation(Vec gate, Vec up, Vec alpha, Vec limit, Vec offset) {
  const Vec one = broadcast(1.0F);
  const Vec g = min(gate, limit);
  const Vec u = max(min(up, limit), negate(limit));
  const Vec a = div(g, add(one, exp(negate(mul(alpha, g)))));
  return mul(add(u, offset), a);
}

void activate(const float* gate, const float* up, int64_t count, float alpha, float limit,
              float offset, float* out) {
  const Vec alphas = broadcast(alpha);
  const Vec limits = broadcast(limit);
  const Vec offsets = broadcast(offset);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    store(out + i, activation(load(gate + i), load(up + i), alphas, limits, offsets));
  }
  if (i < count) {
    const int64_t left = count - i;
    store_first(
        out + i, left,
        activation(load_first(gate + i, left), load_first(up + i, left), alphas, limits, offsets));
  }
}

void sigmoid(float* x, int64_t count) {
  const Vec one = broadcast(1.0F);
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t left = count - i;
    store_first(x + i, left, div(one, add(one, exp(negate(load_first(x + i, left))))));
  }
}

void accumulate(float weight, const float* output, int64_t count, float* routed) {
  const Vec weights = broadcast(weight);
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t left = count - i;
    const Vec sum = fma(weights, load_first(output + i, left), load_first(routed + i, left));
    store_first(routed + i, left, sum);
  }
}

void combine(float factor, const float* routed, const float* shared, int64_t count, float* y) {
  const Vec factors = broadcast(factor);
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t left = count - i;
    const Vec base = shared != nullptr ? load_first(shared + i, left) : zero();
    const Vec sum = fma(factors, load_first(routed + i, left), base);
    store_first(y + i, left, add(load_first(y + i, left), sum));
  }
}

}  // namespace

extern const MlpKernels kMlpKernels = {
    .activate = activate, .sigmoid = sigmoid, .accumulate = accumulate, .combine = combine};

}  // namespace winnow::ops::WINNOW_ISA
