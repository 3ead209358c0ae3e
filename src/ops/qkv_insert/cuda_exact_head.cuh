// One head by one warp, in the written order: norm and RoPE, and its way into a cache plane. What
// exact::qkv_insert() and exact::draft_insert() do with projected heads.
#pragma once

#include <cstdint>

#include "ops/cuda/codecs.cuh"
#include "ops/cuda/lanes.cuh"
#include "ops/qkv_insert/qkv_insert.h"

namespace winnow::cuda::exact {

/// Norm by offset + norm, then RoPE of the first 2 · half dims; `head` is this warp's copy in
/// shared memory.
__device__ inline void finish_head(float* head, const float* norm, int dim, std::int64_t position,
                                   float eps, const ops::RopeTable& rope, int half,
                                   float offset = 1.0F) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const float sum = square_sum16(head, dim);
  const float inverse = 1.0F / sqrtf(sum / static_cast<float>(dim) + eps);
  __syncwarp();
  for (int d = lane; d < dim; d += 32) head[d] = (head[d] * inverse) * (offset + norm[d]);
  __syncwarp();
  const float* const cos = rope.cos + position * half;
  const float* const sin = rope.sin + position * half;
  for (int j = lane; j < half; j += 32) {
    const float a = head[j];
    const float b = head[j + half];
    head[j] = fmaf(-b, sin[j], a * cos[j]);
    head[j + half] = fmaf(a, sin[j], b * cos[j]);
  }
  __syncwarp();
}

__device__ inline void store_vector(const float* head, const HeadPlanes& plane, int number,
                                    std::byte* row, int token) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  std::byte* const data = row + plane.data(number, token);
  if (plane.dtype == CacheDType::kNvfp4) {
    auto* const scales = reinterpret_cast<std::uint8_t*>(row + plane.scales(number, token));
    for (int group = lane; group < plane.dim / kNvfp4Group; group += 32) {
      scales[group] =
          quantize_nvfp4_group(head + group * kNvfp4Group,
                               reinterpret_cast<std::uint8_t*>(data) + group * (kNvfp4Group / 2));
    }
    return;
  }
  for (int d = lane; d < plane.dim; d += 32) {
    switch (plane.dtype) {
      case CacheDType::kF32:
        reinterpret_cast<float*>(data)[d] = head[d];
        break;
      case CacheDType::kBF16:
        reinterpret_cast<Bf16*>(data)[d] = encode_bf16(head[d]);
        break;
      default:
        reinterpret_cast<std::uint8_t*>(data)[d] = encode_e4m3(head[d]);
    }
  }
}

}  // namespace winnow::cuda::exact
