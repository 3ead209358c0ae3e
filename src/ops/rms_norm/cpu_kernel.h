// One row of rms_norm.h on vectors, and what qkv_insert does to a head.
#pragma once

#include <stdint.h>  // NOLINT(modernize-deprecated-headers): see ops/x86/isa.h

namespace winnow::ops {

struct NormKernels {
  /// out = (x · 1/sqrt(mean(x²) + eps)) · (offset + weight); out may be x.
  void (*rms_norm_row)(const float* x, const float* weight, float offset, float eps, int64_t width,
                       float* out);
  /// Rotates the pairs (x[j], x[j + half]) by the angles of cos and sin [half], in place.
  void (*rotate)(const float* cos, const float* sin, int64_t half, float* x);
};

namespace avx512 {
extern const NormKernels kNormKernels;
}
namespace avx2 {
extern const NormKernels kNormKernels;
}
namespace portable {
extern const NormKernels kNormKernels;
}

}  // namespace winnow::ops
