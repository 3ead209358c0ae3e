// The CUDA backend, and how a build without CUDA says that it has none.
#pragma once

#include "ops/backend.h"

namespace winnow::ops {

/// Which set of ops/cuda/cuda_ops.h: `kFast` uses tensor cores where a shape has such a kernel;
/// `kExact` gives the bits of the CPU backends on every shape.
enum class CudaKernels { kFast, kExact };

/// Throws Error{kUnsupported} without a device, or in a build without CUDA.
Backend make_cuda_backend(int device, CudaKernels kernels);

}  // namespace winnow::ops
