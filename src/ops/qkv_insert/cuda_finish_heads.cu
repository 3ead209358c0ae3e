#include "ops/qkv_insert/cuda_finish_heads.h"

#include "ops/cuda/launch.cuh"
#include "ops/cuda/ptx_sm90.cuh"
#include "ops/qkv_insert/cuda_finish_head.cuh"

namespace winnow::cuda {
namespace {

__global__ void __launch_bounds__(16 * kHeadsOfBlock) sm90_finish_heads(const FinishRound p) {
  finish_heads_of_block(p, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x),
                        [] { ptx::griddepcontrol_wait(); });
}

}  // namespace

void finish_heads(CUstream_st* stream, const FinishHeads& heads, const float* projected,
                  std::int32_t first_token, std::int32_t num_tokens) {
  const std::int64_t count = std::int64_t{num_tokens} * heads.stack_heads();
  launch_overlapping(
      sm90_finish_heads,
      {.grid = dim3(static_cast<unsigned>((count + kHeadsOfBlock - 1) / kHeadsOfBlock)),
       .block = dim3(16 * kHeadsOfBlock)},
      stream,
      FinishRound{.heads = heads,
                  .projected = projected,
                  .first_token = first_token,
                  .num_tokens = num_tokens},
      "sm90_finish_heads");
}

}  // namespace winnow::cuda
