#include "ops/rms_norm/cpu_kernel.h"

#include "ops/x86/vec.h"

namespace winnow::ops::WINNOW_ISA {
namespace {

void rms_norm_row(const float* x, const float* weight, float offset, float eps, int64_t width,
                  float* out) {
  Vec lanes = zero();
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    const Vec v = load(x + i);
    lanes = fma(v, v, lanes);
  }
  if (i < width) {
    // Lanes past the end add +0 to a sum of squares, which keeps its bits.
    const Vec v = load_first(x + i, width - i);
    lanes = fma(v, v, lanes);
  }
  const float mean = sum_lanes(lanes) / static_cast<float>(width);
  const Vec inverse = broadcast(1.0F / __builtin_sqrtf(mean + eps));
  const Vec offsets = broadcast(offset);
  for (i = 0; i + kLanes <= width; i += kLanes) {
    store(out + i, mul(mul(load(x + i), inverse), add(offsets, load(weight + i))));
  }
  if (i < width) {
    const int64_t left = width - i;
    const Vec v = mul(load_first(x + i, left), inverse);
    store_first(out + i, left, mul(v, add(offsets, load_first(weight + i, left))));
  }
}

void rotate(const float* cos, const float* sin, int64_t half, float* x) {
  for (int64_t j = 0; j < half; j += kLanes) {
    const int64_t left = half - j;
    const Vec a = load_first(x + j, left);
    const Vec b = load_first(x + half + j, left);
    const Vec c = load_first(cos + j, left);
    const Vec s = load_first(sin + j, left);
    store_first(x + j, left, fma(negate(b), s, mul(a, c)));
    store_first(x + half + j, left, fma(a, s, mul(b, c)));
  }
}

}  // namespace

extern const NormKernels kNormKernels = {.rms_norm_row = rms_norm_row, .rotate = rotate};

}  // namespace winnow::ops::WINNOW_ISA
