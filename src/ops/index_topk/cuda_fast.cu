#include "ops/cuda/cuda_ops.h"
#include "ops/index_topk/index_topk.h"

namespace winnow::cuda::fast {

void index_topk(const ops::OpContext& context, const ops::IndexTopkParams& params) {
  exact::index_topk(context, params);
}

}  // namespace winnow::cuda::fast
