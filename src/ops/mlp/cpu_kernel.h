// The elementwise parts of mlp.h and moe.h on vectors.
#pragma once

#include <stdint.h>  // NOLINT(modernize-deprecated-headers): see ops/x86/isa.h

namespace winnow::ops {

struct MlpKernels {
  /// out[i] = activation of gate[i] and up[i] (mlp.h).
  void (*activate)(const float* gate, const float* up, int64_t count, float alpha, float limit,
                   float offset, float* out);
  /// x[i] = fast_sigmoid(x[i]).
  void (*sigmoid)(float* x, int64_t count);
  /// routed[i] = fma(weight, output[i], routed[i]).
  void (*accumulate)(float weight, const float* output, int64_t count, float* routed);
  /// y[i] += fma(factor, routed[i], shared[i]); shared may be null and counts as 0.
  void (*combine)(float factor, const float* routed, const float* shared, int64_t count, float* y);
};

namespace avx512 {
extern const MlpKernels kMlpKernels;
}
namespace avx2 {
extern const MlpKernels kMlpKernels;
}
namespace portable {
extern const MlpKernels kMlpKernels;
}

}  // namespace winnow::ops
