// Decode's launch; the kernel is decode_block() of cuda_fast_decode.cuh.
#include "ops/cuda/check.h"
#include "ops/cuda/launch.cuh"
#include "ops/moe/cuda_fast.h"
#include "ops/moe/cuda_fast_decode.cuh"

namespace winnow::cuda::fast_moe {
namespace {

__global__ void __launch_bounds__(kThreads, kDecodeBlocksPerMultiprocessor)
    moe_decode(const __grid_constant__ Params params) {
  extern __shared__ __align__(128) std::byte bytes[];
  decode_block(params, bytes, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
}

}  // namespace

void decode(const Layer& layer, const Workspace& work, int num_blocks, cudaStream_t stream) {
  static const cudaError_t kConfigured =
      cudaFuncSetAttribute(moe_decode, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  check(kConfigured, "cudaFuncSetAttribute");
  launch_overlapping(moe_decode,
                     {.grid = dim3(static_cast<unsigned>(num_blocks)),
                      .block = dim3(kThreads),
                      .shared_bytes = kSharedBytes},
                     stream, "moe_decode", Params{layer, work, num_blocks});
}

}  // namespace winnow::cuda::fast_moe
