// A CUDA backend whose operations take host pointers: inputs are uploaded, outputs downloaded, so
// that the tests of the operations run on a device unchanged.
#pragma once

#include "ops/backend.h"
#include "ops/cuda/backend.h"

namespace winnow::ops::testing {

/// Whether this process sees a device that the kernels are built for.
bool has_cuda_device();

/// All backends of one kind share a context, whose operations wait for their result. One thread.
Backend make_hosted_cuda_backend(CudaKernels kernels);

}  // namespace winnow::ops::testing
