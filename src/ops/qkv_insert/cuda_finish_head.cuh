// Norm, RoPE, query cast and cache insertion of one head of 128 values held by sixteen lanes, in
// the order that qkv_insert.h, rms_norm.h and the cache codecs prescribe. Lane i has columns i +
// 16k, k = 0 … 7: its own chain of the norm's Σx², both values of each rotated pair, and one value
// of each NVFP4 group.
#pragma once

#include <cstdint>

#include "formats/bf16.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "ops/qkv_insert/cuda_finish_heads.h"

namespace winnow::cuda {

/// One lane's view of its head; all sixteen lanes of an aligned half-warp call together.
struct HeadLanes {
  float v[8];
  int lane;            // 0 … 15
  std::uint32_t mask;  // of the half-warp

  __device__ __forceinline__ void norm(const float* weight, float eps) {
    float sum = 0.0F;
#pragma unroll
    for (int k = 0; k < 8; ++k) sum = fmaf(v[k], v[k], sum);
#pragma unroll
    for (int half = 8; half > 0; half /= 2) sum += __shfl_xor_sync(mask, sum, half);
    const float inverse = 1.0F / sqrtf(sum / static_cast<float>(kFinishDim) + eps);
#pragma unroll
    for (int k = 0; k < 8; ++k) v[k] = (v[k] * inverse) * (1.0F + weight[lane + 16 * k]);
  }

  __device__ __forceinline__ void rotate(const ops::RopeTable& rope, std::int64_t position) {
    constexpr int kHalf = kFinishRotary / 2;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float cos = rope.cos[position * kHalf + lane + 16 * k];
      const float sin = rope.sin[position * kHalf + lane + 16 * k];
      const float a = v[k];
      const float b = v[k + 2];
      v[k] = fmaf(-b, sin, a * cos);
      v[k + 2] = fmaf(a, sin, b * cos);
    }
  }

  __device__ __forceinline__ void store_query(bool cast, float* out) const {
#pragma unroll
    for (int k = 0; k < 8; ++k) out[lane + 16 * k] = cast ? decode_e4m3(encode_e4m3(v[k])) : v[k];
  }

  /// formats/nvfp4_cache.h: each group's codes as bytes of two lanes.
  __device__ __forceinline__ void store_nvfp4(std::byte* data, std::byte* scales) const {
    constexpr float kLargest = 3.402823466e38F;  // infinities saturate
    std::uint32_t own_scale = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const bool has_nan = __any_sync(mask, v[k] != v[k]) != 0;
      const float x = v[k] < -kLargest ? -kLargest : (kLargest < v[k] ? kLargest : v[k]);
      float largest = fabsf(x);
#pragma unroll
      for (int half = 8; half > 0; half /= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(mask, largest, half));
      }
      const float quotient = largest / 6.0F;
      const float low = quotient < 1.0F / 512.0F ? 1.0F / 512.0F : quotient;
      const std::uint8_t scale = has_nan ? kE4m3NaN : encode_e4m3(low < kE4m3Max ? low : kE4m3Max);
      const std::uint32_t magnitude = e2m1_magnitude(fabsf(x), decode_e4m3(scale));
      const std::uint32_t sign = x < 0.0F && magnitude != 0 ? 8U : 0U;
      const std::uint32_t code = has_nan ? 0U : magnitude | sign;
      const std::uint32_t other = __shfl_xor_sync(mask, code, 1);
      if (lane % 2 == 0) data[8 * k + lane / 2] = static_cast<std::byte>(code | other << 4U);
      if (lane == k) own_scale = scale;
    }
    if (lane < 8) scales[lane] = static_cast<std::byte>(own_scale);
  }

  __device__ __forceinline__ void store_cache(const HeadPlanes& plane, int head, std::byte* row,
                                              int token) const {
    std::byte* const data = row + plane.data(head, token);
    if (plane.dtype == CacheDType::kNvfp4) {
      store_nvfp4(data, row + plane.scales(head, token));
      return;
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int d = lane + 16 * k;
      if (plane.dtype == CacheDType::kF32) {
        reinterpret_cast<float*>(data)[d] = v[k];
      } else if (plane.dtype == CacheDType::kBF16) {
        reinterpret_cast<Bf16*>(data)[d] = encode_bf16(v[k]);
      } else {
        data[d] = static_cast<std::byte>(encode_e4m3(v[k]));
      }
    }
  }

  /// Head `head` of the stack, of token `token` of the batch.
  __device__ __forceinline__ void finish(const FinishHeads& p, std::int32_t head,
                                         std::int32_t token) {
    const std::int32_t position = p.batch.positions[token];
    if (head < p.num_heads) {
      norm(p.q_norm, p.eps);
      rotate(p.rope, position);
      const std::int64_t at = std::int64_t{token} * p.num_heads + head;
      store_query(p.planes.casts_query, p.q + at * kFinishDim);
      return;
    }
    head -= p.num_heads;
    const std::int32_t index_head = head - 2 * p.num_kv_heads;
    if (index_head >= 0 && index_head < p.num_index_heads) {
      norm(p.index_q_norm, p.eps);
      rotate(p.rope, position);
      const std::int64_t at = std::int64_t{token} * p.num_index_heads + index_head;
      store_query(p.planes.casts_index_query, p.index_q + at * kFinishDim);
      return;
    }
    const std::int32_t block_tokens = p.planes.block_tokens;
    std::byte* const row = p.planes.row(p.batch.pool_row(token, position / block_tokens));
    const int slot = position % block_tokens;
    if (head >= p.num_kv_heads && index_head < 0) {
      store_cache(p.planes.v, head - p.num_kv_heads, row, slot);
      return;
    }
    norm(index_head < 0 ? p.k_norm : p.index_k_norm, p.eps);
    rotate(p.rope, position);
    store_cache(index_head < 0 ? p.planes.k : p.planes.index_k, index_head < 0 ? head : 0, row,
                slot);
  }
};

/// Tokens [first_token, first_token + num_tokens) of the batch; `projected` is
/// [num_tokens][stack_heads][128].
struct FinishRound {
  FinishHeads heads;
  const float* projected = nullptr;
  std::int32_t first_token = 0;
  std::int32_t num_tokens = 0;
};

inline constexpr int kHeadsOfBlock = 8;

/// Block `block` of `num_blocks`, kHeadsOfBlock half-warps each: one half-warp a (token, head).
__device__ __forceinline__ void finish_heads_of_block(const FinishRound& p, int block,
                                                      int num_blocks) {
  const auto stack = static_cast<std::uint32_t>(p.heads.stack_heads());
  const std::uint32_t count = static_cast<std::uint32_t>(p.num_tokens) * stack;
  HeadLanes head;
  head.lane = static_cast<int>(threadIdx.x) % 16;
  head.mask = 0xFFFFU << (threadIdx.x % 32 / 16 * 16);
  for (std::uint32_t index = static_cast<std::uint32_t>(block) * kHeadsOfBlock + threadIdx.x / 16;
       index < count; index += static_cast<std::uint32_t>(num_blocks) * kHeadsOfBlock) {
    const float* const from = p.projected + std::int64_t{index} * kFinishDim + head.lane;
#pragma unroll
    for (int k = 0; k < 8; ++k) head.v[k] = from[16 * k];
    head.finish(p.heads, static_cast<std::int32_t>(index % stack),
                p.first_token + static_cast<std::int32_t>(index / stack));
  }
}

}  // namespace winnow::cuda
