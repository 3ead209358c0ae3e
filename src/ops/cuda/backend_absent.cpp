#include "base/error.h"
#include "ops/cuda/backend.h"

namespace winnow::ops {

Backend make_cuda_backend(int /*device*/, CudaKernels /*kernels*/) {
  throw Error(ErrorCode::kUnsupported, "this build has no CUDA backend",
              "build with ./dev build cuda, or use --device cpu");
}

}  // namespace winnow::ops
