#include "ops/cuda/cuda_ops.h"
#include "ops/qkv_insert/qkv_insert.h"

namespace winnow::cuda::fast {

void qkv_insert(const ops::OpContext& context, const ops::QkvInsertParams& params) {
  exact::qkv_insert(context, params);
}

}  // namespace winnow::cuda::fast
