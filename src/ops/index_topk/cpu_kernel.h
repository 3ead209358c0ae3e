// The inner loop of `index_topk`: the best of some keys for each of some query rows.
#pragma once

#include <stdint.h>  // NOLINT(modernize-deprecated-headers): see ops/x86/isa.h

namespace winnow::ops {

struct Nvfp4Plane;  // ops/attention/cpu_kernel.h

struct IndexKernels {
  /// best[r] = max(best[r], max over keys of Σ_d rows[r][d] · keys[k][d]), the sum in 16 lanes as
  /// index_topk.h says; NaN never wins. rows [num_rows][dim], keys [num_keys][dim].
  void (*best_scores)(const float* rows, int64_t num_rows, const float* keys, int64_t num_keys,
                      int64_t dim, float* best);
  /// The same straight from the cache: each tile of four rows decodes the keys again, so for few
  /// rows. dim is a multiple of 16.
  void (*best_nvfp4_scores)(const float* rows, int64_t num_rows, const Nvfp4Plane& keys,
                            float* best);
};

namespace avx512 {
extern const IndexKernels kIndexKernels;
}
namespace avx2 {
extern const IndexKernels kIndexKernels;
}
namespace portable {
extern const IndexKernels kIndexKernels;
}

}  // namespace winnow::ops
