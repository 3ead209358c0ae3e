#include "ops/qkv_insert/cuda_finish_heads.h"

#include "ops/cuda/launch.cuh"
#include "ops/cuda/ptx_sm90.cuh"
#include "ops/qkv_insert/cuda_finish_head.cuh"

namespace winnow::cuda {
namespace {

constexpr int kHeadsOfBlock = 8;

struct FinishRound {
  FinishHeads heads;
  const float* projected = nullptr;
  std::int32_t first_token = 0;
  std::int32_t num_tokens = 0;
};

/// One half-warp a (token, head).
__global__ void __launch_bounds__(16 * kHeadsOfBlock) sm90_finish_heads(const FinishRound p) {
  ptx::griddepcontrol_wait();
  const std::int32_t stack = p.heads.stack_heads();
  const std::int64_t index =
      std::int64_t{blockIdx.x} * kHeadsOfBlock + static_cast<int>(threadIdx.x) / 16;
  if (index >= std::int64_t{p.num_tokens} * stack) return;
  HeadLanes head;
  head.lane = static_cast<int>(threadIdx.x) % 16;
  head.mask = 0xFFFFU << (threadIdx.x % 32 / 16 * 16);
  const float* const from = p.projected + index * kFinishDim + head.lane;
#pragma unroll
  for (int k = 0; k < 8; ++k) head.v[k] = from[16 * k];
  head.finish(p.heads, static_cast<std::int32_t>(index % stack),
              p.first_token + static_cast<std::int32_t>(index / stack));
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
