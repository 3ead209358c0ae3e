// Launches that overlap with the one before: programmatic dependent launch, in streams and in
// graphs.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "ops/cuda/check.h"

namespace winnow::cuda {

/// `kernel` may begin before the previous launch has ended, as soon as that one's CTAs ran
/// griddepcontrol.launch_dependents or ended; it sees that one's writes, and those of the launches
/// before it that it waited for, after griddepcontrol.wait.
template <typename... Args>
void launch_overlapped(void (*kernel)(Args...), dim3 grid, dim3 block, std::size_t shared_bytes,
                       cudaStream_t stream, const Args&... args) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, args...), "cudaLaunchKernelEx");
}

}  // namespace winnow::cuda
