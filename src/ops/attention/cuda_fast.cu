#include "ops/cuda/cuda_ops.h"
#include "ops/attention/attention.h"

namespace winnow::cuda::fast {

void attention(const ops::OpContext& context, const ops::AttentionParams& params) {
  exact::attention(context, params);
}

}  // namespace winnow::cuda::fast
