// Of attention for many tokens: the warpgroup that turns cached blocks into
// operands of wgmma. Included by cuda_prefill.cu alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cuda/cache_fragments.cuh"
#include "ops/cuda/page_operand.cuh"
#include "ops/cuda/ptx_sm90.cuh"

namespace winnow::cuda::attention_prefill {

inline constexpr int kTileTokens = 4;
inline constexpr int kProducerThreads = 128;

/// K or V of one block on its way to the consumers.
struct Pipe {
  std::uint64_t full;
  std::uint64_t empty;
};
struct PipeAddresses {
  std::uint32_t full;
  std::uint32_t empty;
  __device__ __forceinline__ explicit PipeAddresses(const Pipe& pipe)
      : full(ptx::shared_address(&pipe.full)), empty(ptx::shared_address(&pipe.empty)) {}
};

/// 32 neighbouring values of one vector as the cache has them, in registers.
template <CacheFormat F>
struct RawPart {
  uint4 codes[is_nvfp4(F) ? 1 : 2];
  std::uint32_t scales;  // two bytes

  __device__ __forceinline__ void load(const std::byte* data) {
#pragma unroll
    for (int i = 0; i < (is_nvfp4(F) ? 1 : 2); ++i) {
      codes[i] = __ldg(reinterpret_cast<const uint4*>(data) + i);
    }
  }
  __device__ __forceinline__ void load_scales(const std::byte* from) {
    if constexpr (is_nvfp4(F)) scales = __ldg(reinterpret_cast<const std::uint16_t*>(from));
  }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < (is_nvfp4(F) ? 1 : 2); ++i) codes[i] = make_uint4(0, 0, 0, 0);
    scales = 0;
    asm volatile("");  // a branch, not 20 selects for each block
  }

  /// Values 16 to 31 before 0 to 15.
  __device__ __forceinline__ void swap_halves(bool swaps) {
    if constexpr (is_nvfp4(F)) {
      const uint4 x = codes[0];
      codes[0] =
          make_uint4(swaps ? x.z : x.x, swaps ? x.w : x.y, swaps ? x.x : x.z, swaps ? x.y : x.w);
      scales = ptx::prmt(scales, 0U, swaps ? 0x4401U : 0x4410U);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        std::uint32_t& x = (&codes[0].x)[i];
        std::uint32_t& y = (&codes[1].x)[i];
        const std::uint32_t before = x;
        x = swaps ? y : x;
        y = swaps ? before : y;
      }
    }
  }

  /// What its two groups share; nothing for fp8.
  __device__ __forceinline__ void load_groups(const uint2* table,
                                              GroupScale<F> (&groups)[2]) const {
    if constexpr (is_nvfp4(F)) load_group_scales<F>(scales, table, groups[0], groups[1]);
  }

  /// As halves, in order.
  __device__ __forceinline__ void expand(const GroupScale<F> (&groups)[2],
                                         std::uint32_t (&values)[16]) const {
    if constexpr (is_nvfp4(F)) {
      const std::uint32_t words[4] = {codes[0].x, codes[0].y, codes[0].z, codes[0].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        std::uint32_t halves[4];
        expand_nvfp4<F>(words[i], groups[i / 2], halves);
#pragma unroll
        for (int j = 0; j < 4; ++j) values[4 * i + j] = halves[j];
      }
    } else {
      const std::uint32_t words[8] = {codes[0].x, codes[0].y, codes[0].z, codes[0].w,
                                      codes[1].x, codes[1].y, codes[1].z, codes[1].w};
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        std::uint32_t halves[2];
        expand_fp8(words[i], halves);
        values[2 * i] = halves[0];
        values[2 * i + 1] = halves[1];
      }
    }
  }
};

/// A thread's part of K or V of a block in global memory: quarter lane % 4 of
/// the vectors of tokens 8i + lane / 4 of its warp's 32.
template <CacheFormat F>
struct PlaneSource {
  const std::byte* data;
  const std::byte* scales;

  __device__ __forceinline__ PlaneSource(const CachePlanes& planes, const HeadPlanes& part,
                                         int kv_head, std::int64_t row) {
    const int thread = static_cast<int>(threadIdx.x) & (kProducerThreads - 1);
    int quarter = (thread & ~31) * 4 + (thread & 31);  // of a vector, among those of the plane
    asm volatile("" : "+r"(quarter));  // made for each plane: the loop has no registers for all
    const std::byte* const plane = planes.pool + row;
    data = plane + part.data(kv_head, 0) + quarter * (vector_bytes(F) / 4);
    scales = plane + part.scales(kv_head, 0) + quarter * 2;
  }

  __device__ __forceinline__ void load(int i, RawPart<F>& part) const {
    part.load(data + i * 8 * vector_bytes(F));
    part.load_scales(scales + i * 64);
  }
};

__device__ __forceinline__ void hand_over(std::uint32_t full) {
  ptx::fence_proxy_async();
  __syncwarp();
  if ((threadIdx.x & 31) == 0) ptx::mbarrier_arrive(full);
}

/// Codes are on their way from global memory while the plane before is
/// converted: into registers, each part read again as soon as it is used.
template <CacheFormat F, class Walk>
__device__ __forceinline__ void produce_converted(const CachePlanes& planes, int kv_head,
                                                  int last_position, const Walk& walk,
                                                  std::byte* operands, const uint2* table,
                                                  const PipeAddresses& key_pipe,
                                                  const PipeAddresses& value_pipe) {
  const int thread = static_cast<int>(threadIdx.x) & (kProducerThreads - 1);
  const int n = (thread & 31) / 4;
  std::byte* key_to[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    key_to[i] = operands + ((thread & ~31) + n) * 128 + ((i ^ n) << 4) + (thread & 3) * 4;
  }
  // The eight lanes of a phase write to different banks: those of the vector's
  // second half store their chunks 2, 3 before 0, 1.
  const bool is_second = (thread & 2) != 0;
  std::byte* value_to[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int chunk = (thread & 1) * 4 + (is_second ? i ^ 2 : i);
    value_to[i] = operands + kOperandBytes + (is_second ? kOperandHalfBytes : 0) +
                  ((thread & ~31) + n) * 128 + ((chunk ^ n) << 4);
  }
  const int count = walk.count();
  if (count == 0) return;
  RawPart<F> parts[4];
  std::int32_t pool_row = walk.pool_row(0);
  {
    const PlaneSource<F> first(planes, planes.k, kv_head, pool_row * planes.row_bytes);
#pragma unroll
    for (int i = 0; i < 4; ++i) first.load(i, parts[i]);
  }
  for (int b = 0; b < count; ++b) {
    const std::uint32_t parity = static_cast<std::uint32_t>(b) & 1;
    {
      const PlaneSource<F> next(planes, planes.v, kv_head, pool_row * planes.row_bytes);
      GroupScale<F> groups[4][2];
      parts[0].load_groups(table, groups[0]);
      ptx::mbarrier_wait_parity(key_pipe.empty, parity ^ 1);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // Shared memory answers while the part before is converted.
        if (i < 3) parts[i + 1].load_groups(table, groups[i + 1]);
        std::uint32_t values[16];
        parts[i].expand(groups[i], values);
        next.load(i, parts[i]);
#pragma unroll
        for (int chunk = 0; chunk < 16; ++chunk) {
          *reinterpret_cast<std::uint32_t*>(key_to[chunk % 8] + i * 1024 +
                                            chunk / 8 * kOperandHalfBytes) = values[chunk];
        }
      }
      hand_over(key_pipe.full);
    }
    // Values past the tile's last token may never have been written; P is 0
    // there.
    const int num_written = last_position + 1 - walk.block(b) * kFastBlockTokens;
    if (num_written < kFastBlockTokens) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if ((thread & ~31) + 8 * i + n >= num_written) parts[i].clear();
      }
    }
    pool_row = walk.pool_row(min(b + 1, count - 1));
    const PlaneSource<F> next(planes, planes.k, kv_head, pool_row * planes.row_bytes);
    GroupScale<F> groups[4][2];
    parts[0].swap_halves(is_second);
    parts[0].load_groups(table, groups[0]);
    ptx::mbarrier_wait_parity(value_pipe.empty, parity ^ 1);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < 3) {
        parts[i + 1].swap_halves(is_second);
        parts[i + 1].load_groups(table, groups[i + 1]);
      }
      std::uint32_t values[16];
      parts[i].expand(groups[i], values);
      next.load(i, parts[i]);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        *reinterpret_cast<uint4*>(value_to[j] + i * 1024) =
            make_uint4(values[4 * j], values[4 * j + 1], values[4 * j + 2], values[4 * j + 3]);
      }
    }
    hand_over(value_pipe.full);
  }
}

/// bf16 lies in the cache as operands do, but for the swizzle: copied straight
/// to its place.
template <class Walk>
__device__ __forceinline__ void produce_copied(const CachePlanes& planes, int kv_head,
                                               int last_position, const Walk& walk,
                                               std::byte* operands, const PipeAddresses& key_pipe,
                                               const PipeAddresses& value_pipe) {
  // A warp copies two vectors at a time, 16 bytes a lane.
  const int thread = static_cast<int>(threadIdx.x) & (kProducerThreads - 1);
  const int first = thread / 16;
  const int chunk = thread & 15;
  const std::uint32_t to = ptx::shared_address(operands) + first * 128 +
                           (chunk >> 3) * kOperandHalfBytes + (((chunk ^ first) & 7) << 4);
  const std::int64_t from = first * 2 * kFastDim + chunk * 16;
  const std::byte* const keys = planes.pool + planes.k.data(kv_head, 0) + from;
  const std::byte* const values = planes.pool + planes.v.data(kv_head, 0) + from;
  const int count = walk.count();
  for (int b = 0; b < count; ++b) {
    const std::int64_t row = walk.pool_row(b) * planes.row_bytes;
    const std::uint32_t parity = static_cast<std::uint32_t>(b) & 1;
    ptx::mbarrier_wait_parity(key_pipe.empty, parity ^ 1);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      ptx::cp_async_cg(to + i * 1024, keys + row + i * 8 * 2 * kFastDim);
    }
    ptx::cp_async_commit_group();
    if (b > 0) {
      ptx::cp_async_wait_group<1>();
      hand_over(value_pipe.full);
    }
    ptx::mbarrier_wait_parity(value_pipe.empty, parity ^ 1);
    // Values past the tile's last token may never have been written; P is 0
    // there.
    const int num_written = last_position + 1 - walk.block(b) * kFastBlockTokens;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      ptx::cp_async_cg_or_zero(to + kOperandBytes + i * 1024, values + row + i * 8 * 2 * kFastDim,
                               first + 8 * i < num_written);
    }
    ptx::cp_async_commit_group();
    ptx::cp_async_wait_group<1>();
    hand_over(key_pipe.full);
  }
  ptx::cp_async_wait_group<0>();
  if (count > 0) hand_over(value_pipe.full);
}

/// By the producer warpgroup: K and V of each block of the walk, one operand at
/// a time each.
template <CacheFormat F, class Walk>
__device__ __forceinline__ void produce(const CachePlanes& planes, int kv_head, int last_position,
                                        const Walk& walk, std::byte* operands, const uint2* table,
                                        const PipeAddresses& key_pipe,
                                        const PipeAddresses& value_pipe) {
  if constexpr (F == CacheFormat::kBf16) {
    produce_copied(planes, kv_head, last_position, walk, operands, key_pipe, value_pipe);
  } else {
    produce_converted<F>(planes, kv_head, last_position, walk, operands, table, key_pipe,
                         value_pipe);
  }
}

}  // namespace winnow::cuda::attention_prefill
