// Programmatic dependent launch: a kernel may start while the one before it still runs, load what
// does not depend on it (weights), and wait for it only then (ptx::griddepcontrol_wait).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/check.h"

namespace winnow::cuda {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes = 0;
};

/// Launches `kernel`, which calls griddepcontrol_wait(), so that it may overlap the end of the one
/// before it.
template <typename Params>
void launch_overlapping(void (*kernel)(Params), const LaunchShape& shape, cudaStream_t stream,
                        const Params& params, const char* name) {
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
  check(cudaLaunchKernelEx(&config, kernel, params), name);
}

}  // namespace winnow::cuda
