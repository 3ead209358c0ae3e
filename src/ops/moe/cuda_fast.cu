#include "ops/cuda/cuda_ops.h"
#include "ops/moe/moe.h"

namespace winnow::cuda::fast {

void moe(const ops::OpContext& context, const ops::MoeParams& params) {
  exact::moe(context, params);
}

}  // namespace winnow::cuda::fast
