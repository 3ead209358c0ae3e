// Norm, RoPE, query cast and cache insertion of one head of 128 values held by sixteen lanes, in
// the order that qkv_insert.h, rms_norm.h and the cache codecs prescribe. Lane i has columns i +
// 16k, k = 0 … 7: its own chain of the norm's Σx², both values of each rotated pair, and one value
// of each NVFP4 group.
#pragma once

#include <cstdint>

#include "formats/bf16.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "ops/cuda/ptx.cuh"
#include "ops/cuda/ptx_sm90.cuh"
#include "ops/qkv_insert/cuda_finish_heads.h"

namespace winnow::cuda {

/// Where a token of the batch stands, found by a chain of loads that each need the one before:
/// begin(), then advance() until found(). The arrays of the batch are older than what is projected,
/// so a kernel may read them before it waits for that.
struct TokenPlace {
  std::int32_t position;
  std::int32_t sequence;
  const std::int32_t* block_table;
  std::int32_t row;  // of the pool
  int step;

  __device__ __forceinline__ void begin(const FinishHeads& p, std::int32_t token) {
    position = p.batch.positions[token];
    sequence = p.batch.sequence_of[token];
    step = 0;
  }
  __device__ __forceinline__ void advance(const FinishHeads& p) {
    if (step == 0) block_table = p.batch.sequences[sequence].block_table;
    if (step == 1) row = block_table[position / p.planes.block_tokens];
    ++step;
  }
  __device__ __forceinline__ bool found() const { return step >= 2; }
};

/// A head of the stack [q; k; v; index_q; index_k].
struct HeadKind {
  std::int32_t head;
  std::int32_t key;         // >= 0: no query
  std::int32_t value;       // >= 0: no key
  std::int32_t index_head;  // >= 0: of the indexer
  bool is_index_query;

  __device__ __forceinline__ HeadKind(const FinishHeads& p, std::int32_t head_of_stack)
      : head(head_of_stack),
        key(head - p.num_heads),
        value(key - p.num_kv_heads),
        index_head(value - p.num_kv_heads),
        is_index_query(index_head >= 0 && index_head < p.num_index_heads) {}

  __device__ __forceinline__ bool is_value() const { return value >= 0 && index_head < 0; }
  __device__ __forceinline__ bool is_query() const { return key < 0 || is_index_query; }
  __device__ __forceinline__ const float* norm_weight(const FinishHeads& p) const {
    return key < 0          ? p.q_norm
           : index_head < 0 ? p.k_norm
           : is_index_query ? p.index_q_norm
                            : p.index_k_norm;
  }
};

/// One lane's view of its head; all sixteen lanes of an aligned half-warp call together. First
/// load_operands(), then v, then finish().
struct HeadLanes {
  float v[8];
  float weight[8];
  float cos[2];
  float sin[2];
  int lane;            // 0 … 15
  std::uint32_t mask;  // of the half-warp

  __device__ __forceinline__ HeadLanes()
      : lane(static_cast<int>(threadIdx.x) % 16), mask(0xFFFFU << (threadIdx.x % 32 / 16 * 16)) {}

  __device__ __forceinline__ void load_operands(const FinishHeads& p, const HeadKind& kind,
                                                std::int32_t position) {
    if (kind.is_value()) return;
    const float* const from = kind.norm_weight(p) + lane;
#pragma unroll
    for (int k = 0; k < 8; ++k) weight[k] = from[16 * k];
    const std::int64_t at = std::int64_t{position} * (kFinishRotary / 2) + lane;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      cos[k] = p.rope.cos[at + 16 * k];
      sin[k] = p.rope.sin[at + 16 * k];
    }
  }

  __device__ __forceinline__ void norm(float eps) {
    float sum = 0.0F;
#pragma unroll
    for (int k = 0; k < 8; ++k) sum = fmaf(v[k], v[k], sum);
#pragma unroll
    for (int half = 8; half > 0; half /= 2) sum += __shfl_xor_sync(mask, sum, half);
    const float inverse = 1.0F / sqrtf(sum / static_cast<float>(kFinishDim) + eps);
#pragma unroll
    for (int k = 0; k < 8; ++k) v[k] = (v[k] * inverse) * (1.0F + weight[k]);
  }

  __device__ __forceinline__ void rotate() {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float a = v[k];
      const float b = v[k + 2];
      v[k] = fmaf(-b, sin[k], a * cos[k]);
      v[k + 2] = fmaf(a, sin[k], b * cos[k]);
    }
  }

  __device__ __forceinline__ void store_query(bool cast, float* out) const {
#pragma unroll
    for (int k = 0; k < 8; k += 2) {
      float2 pair{v[k], v[k + 1]};
      if (cast) {
        const std::uint16_t codes = ptx::cvt_satfinite_e4m3x2(pair.x, pair.y);
        const std::uint32_t halves = ptx::cvt_f16x2_e4m3x2(codes);
        pair = __half22float2(*reinterpret_cast<const __half2*>(&halves));
      }
      out[lane + 16 * k] = pair.x;
      out[lane + 16 * k + 16] = pair.y;
    }
  }

  /// The largest |v| of group lane / 2 as bits, which order as the values do, NaN above all: lanes
  /// exchange halves of their groups until one is left.
  __device__ __forceinline__ std::uint32_t largest_of_group() const {
    std::uint32_t largest[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) largest[k] = __float_as_uint(fabsf(v[k]));
#pragma unroll
    for (int half = 4; half > 0; half /= 2) {
      const bool upper = (lane & 2 * half) != 0;
#pragma unroll
      for (int k = 0; k < half; ++k) {
        const std::uint32_t given = upper ? largest[k] : largest[k + half];
        const std::uint32_t kept = upper ? largest[k + half] : largest[k];
        largest[k] = max(kept, __shfl_xor_sync(mask, given, 2 * half));
      }
    }
    return max(largest[0], __shfl_xor_sync(mask, largest[0], 1));
  }

  /// formats/nvfp4_cache.h: each group's codes as bytes of two lanes. Infinities saturate; a group
  /// with NaN has the scale NaN and codes 0.
  __device__ __forceinline__ void store_nvfp4(std::byte* data, std::byte* scales) const {
    const float largest = __uint_as_float(largest_of_group());
    const float quotient = largest / 6.0F;  // NaN passes the next line
    const float low = quotient < 1.0F / 512.0F ? 1.0F / 512.0F : quotient;
    const std::uint16_t own_code = ptx::cvt_satfinite_e4m3x2(low, 0.0F);
    const std::uint32_t halves = ptx::cvt_f16x2_e4m3x2(own_code);
    const float own_scale = __low2float(*reinterpret_cast<const __half2*>(&halves));
    std::uint32_t codes = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float scale = __shfl_sync(mask, own_scale, 2 * k, 16);
      const std::uint32_t magnitude = e2m1_magnitude(fabsf(v[k]), scale);
      const std::uint32_t sign = v[k] < 0.0F && magnitude != 0 ? 8U : 0U;
      codes |= (magnitude | sign) << (4 * k);
    }
    const std::uint32_t other = __shfl_xor_sync(mask, codes, 1);
    // Even lanes store groups 0 … 3, odd ones the rest.
    const bool is_odd = lane % 2 != 0;
    const std::uint32_t low_codes = is_odd ? other >> 16 : codes;
    const std::uint32_t high_codes = is_odd ? codes >> 16 : other;
    std::byte* const to = data + (is_odd ? 32 : 0) + lane / 2;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      to[8 * k] = static_cast<std::byte>((low_codes >> (4 * k) & 0xFU) |
                                         (high_codes >> (4 * k) & 0xFU) << 4);
    }
    if (!is_odd) scales[lane / 2] = static_cast<std::byte>(own_code & 0xFFU);
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

  /// v of token `token` of the batch, which stands at `place`.
  __device__ __forceinline__ void finish(const FinishHeads& p, const HeadKind& kind,
                                         std::int32_t token, const TokenPlace& place) {
    if (!kind.is_value()) {
      norm(p.eps);
      rotate();
    }
    if (kind.is_query()) {
      const std::int64_t at = kind.key < 0
                                  ? std::int64_t{token} * p.num_heads + kind.head
                                  : std::int64_t{token} * p.num_index_heads + kind.index_head;
      store_query(kind.key < 0 ? p.planes.casts_query : p.planes.casts_index_query,
                  (kind.key < 0 ? p.q : p.index_q) + at * kFinishDim);
      return;
    }
    const HeadPlanes& plane = kind.is_value()       ? p.planes.v
                              : kind.index_head < 0 ? p.planes.k
                                                    : p.planes.index_k;
    store_cache(plane,
                kind.is_value()       ? kind.value
                : kind.index_head < 0 ? kind.key
                                      : 0,
                p.planes.row(place.row), place.position % p.planes.block_tokens);
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
/// wait() is called before what was projected is read.
template <typename Wait>
__device__ __forceinline__ void finish_heads_of_block(const FinishRound& p, int block,
                                                      int num_blocks, const Wait& wait) {
  const auto stack = static_cast<std::uint32_t>(p.heads.stack_heads());
  const std::uint32_t count = static_cast<std::uint32_t>(p.num_tokens) * stack;
  for (std::uint32_t index = static_cast<std::uint32_t>(block) * kHeadsOfBlock + threadIdx.x / 16;
       index < count; index += static_cast<std::uint32_t>(num_blocks) * kHeadsOfBlock) {
    const HeadKind kind(p.heads, static_cast<std::int32_t>(index % stack));
    const std::int32_t token = p.first_token + static_cast<std::int32_t>(index / stack);
    TokenPlace place;
    place.begin(p.heads, token);
    HeadLanes head;
    head.load_operands(p.heads, kind, place.position);
    while (!kind.is_query() && !place.found()) place.advance(p.heads);
    wait();
    const float* const from = p.projected + std::int64_t{index} * kFinishDim + head.lane;
#pragma unroll
    for (int k = 0; k < 8; ++k) head.v[k] = from[16 * k];
    head.finish(p.heads, kind, token, place);
  }
}

}  // namespace winnow::cuda
