#include "ops/cuda/backend.h"

#include <utility>

#include "ops/cuda/context.h"
#include "ops/cuda/cuda_ops.h"

namespace winnow::ops {

Backend make_cuda_backend(int device, CudaKernels kernels) {
  auto context = std::make_shared<cuda::Context>(device);
  cuda::Context* const raw = context.get();
  const bool is_fast = kernels == CudaKernels::kFast;
  return {.name = is_fast ? "cuda" : "cuda-exact",
          .memory = context->memory(),
          .cuda = std::move(context),
          .pack = [raw](std::span<const MatrixSource> stacked) { return cuda::pack(*raw, stacked); },
          .bind_experts = [raw](std::span<const MlpWeights> experts, const MlpWeights& shared) {
            return cuda::bind_experts(*raw, experts, shared);
          },
          .keep_rows = cuda::exact::keep_rows,
          .embed = cuda::exact::embed,
          .rms_norm = cuda::exact::rms_norm,
          .linear = is_fast ? cuda::fast::linear : cuda::exact::linear,
          .qkv_insert = is_fast ? cuda::fast::qkv_insert : cuda::exact::qkv_insert,
          .index_topk = is_fast ? cuda::fast::index_topk : cuda::exact::index_topk,
          .attention = is_fast ? cuda::fast::attention : cuda::exact::attention,
          .mlp = is_fast ? cuda::fast::mlp : cuda::exact::mlp,
          .moe = is_fast ? cuda::fast::moe : cuda::exact::moe};
}

}  // namespace winnow::ops
