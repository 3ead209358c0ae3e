#include "ops/cuda/cuda_ops.h"
#include "ops/mlp/mlp.h"

namespace winnow::cuda::fast {

void mlp(const ops::OpContext& context, const ops::MlpParams& params) {
  exact::mlp(context, params);
}

}  // namespace winnow::cuda::fast
