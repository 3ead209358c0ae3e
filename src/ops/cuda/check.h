// Every CUDA call's status becomes an Error that names the call.
#pragma once

#include <cuda_runtime.h>

namespace winnow::cuda {

/// Throws Error{kOutOfMemory} or Error{kInternal} with CUDA's own message unless `status` is
/// success. `call` as a reader would name it, e.g. "cudaMemcpyAsync".
void check(cudaError_t status, const char* call);

/// After a launch: a bad configuration shows here, a fault in the kernel at the next wait.
inline void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

}  // namespace winnow::cuda
