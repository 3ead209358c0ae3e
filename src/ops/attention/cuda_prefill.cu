#include "ops/attention/cuda_prefill.h"

#include "ops/attention/cuda_prefill_tile.cuh"

namespace winnow::cuda {

bool covers_attention_prefill(const ops::AttentionShape& shape, const CachePlanes& planes,
                              bool is_sparse) {
  using namespace attention_prefill;
  return shape.head_dim == kFastDim && planes.block_tokens == kFastBlockTokens &&
         shape.num_heads % shape.num_kv_heads == 0 &&
         shape.num_heads / shape.num_kv_heads <= kRowsPerToken &&
         has_cache_format(planes.k.dtype) &&
         (!is_sparse || (shape.top_k_blocks >= 1 && shape.top_k_blocks <= kMaxTopK &&
                         shape.num_index_heads == shape.num_kv_heads));
}

void launch_attention_prefill(const AttentionPrefillArgs& args, cudaStream_t stream) {
  if (args.batch.num_tokens == 0) return;
  if (args.blocks != nullptr) {
    launch_sparse_prefill(args, stream);
  } else {
    launch_dense_prefill(args, stream);
  }
}

}  // namespace winnow::cuda
