// Programmatic dependent launch, in streams and in graphs: a kernel may start while the one before
// it still runs, load what does not depend on it (weights), and wait for it only then.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "ops/cuda/check.h"

namespace winnow::cuda {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;
};

/// `kernel` may begin before the previous launch has ended, as soon as that one's blocks ran
/// griddepcontrol.launch_dependents or ended; it sees that one's writes, and those of the launches
/// before it that it waited for, after griddepcontrol.wait, which it must call.
template <typename... Args>
void launch_overlapping(void (*kernel)(Args...), const LaunchShape& shape, cudaStream_t stream,
                        const char* name, const Args&... args) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, args...), name);
}

/// The same for the usual kernel, which takes one struct.
template <typename Params>
void launch_overlapping(void (*kernel)(Params), const LaunchShape& shape, cudaStream_t stream,
                        const Params& params, const char* name) {
  launch_overlapping<Params>(kernel, shape, stream, name, params);
}

}  // namespace winnow::cuda
