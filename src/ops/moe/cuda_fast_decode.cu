// Decode's launch; the kernel is decode_block() of cuda_fast_decode.cuh.
#include "ops/cuda/check.h"
#include "ops/cuda/launch.cuh"
#include "ops/moe/cuda_fast.h"
#include "ops/moe/cuda_fast_decode.cuh"

namespace winnow::cuda::fast_moe {
namespace {

__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor)
    moe_decode(const __grid_constant__ Params params) {
  extern __shared__ __align__(128) std::byte bytes[];
  decode_block(params, *reinterpret_cast<DecodeMemory*>(bytes), static_cast<int>(blockIdx.x),
               static_cast<int>(gridDim.x));
}

constexpr int kSharedBytes = static_cast<int>(sizeof(DecodeMemory));

}  // namespace

void decode(const Layer& layer, const Workspace& work, int num_multiprocessors,
            cudaStream_t stream) {
  static const cudaError_t kConfigured = [] {
    const cudaError_t status =
        cudaFuncSetAttribute(moe_decode, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
    return status != cudaSuccess
               ? status
               : cudaFuncSetAttribute(moe_decode, cudaFuncAttributePreferredSharedMemoryCarveout,
                                      cudaSharedmemCarveoutMaxShared);
  }();
  check(kConfigured, "cudaFuncSetAttribute");
  const int num_blocks = kBlocksPerMultiprocessor * num_multiprocessors;
  launch_overlapping(moe_decode,
                     {.grid = dim3(static_cast<unsigned>(num_blocks)),
                      .block = dim3(kThreads),
                      .shared_bytes = kSharedBytes},
                     stream, "moe_decode", Params{layer, work, num_blocks});
}

}  // namespace winnow::cuda::fast_moe
