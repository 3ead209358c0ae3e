// The inner loop of `index_topk`: the best of some keys for each of some query rows.
#pragma once

#include <stdint.h>  // NOLINT(modernize-deprecated-headers): see ops/x86/isa.h

namespace winnow::ops {

struct IndexKernels {
  /// best[r] = max(best[r], max over keys of Σ_d rows[r][d] · keys[k][d]), the sum in 16 lanes as
  /// index_topk.h says; NaN never wins. rows [num_rows][dim], keys [num_keys][dim].
  void (*best_scores)(const float* rows, int64_t num_rows, const float* keys, int64_t num_keys,
                      int64_t dim, float* best);
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
