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

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < (is_nvfp4(F) ? 1 : 2); ++i) codes[i] = make_uint4(0, 0, 0, 0);
    scales = 0;
    asm volatile("");  // a branch, not 20 selects for each block
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

/// A producer lane's place in eight tokens of a plane: the token, and the quarter of its vector. So
/// chosen that the lanes of a phase of stores use different banks, both for keys (16 lanes, 8 bytes
/// each) and for values (8 lanes, 16 bytes).
struct LanePlace {
  int token;
  int quarter;

  __device__ __forceinline__ explicit LanePlace(int lane)
      : token((lane >> 1 & 3) | ((lane >> 1 ^ lane >> 4) & 1) << 2),
        quarter((lane & 1) | (lane >> 3 & 1) << 1) {}
};

/// What a warp's 32 tokens of the planes to come have in the cache, in halves of 16 tokens. Copied
/// asynchronously: loads to registers are left by the compiler to where they must be waited for.
/// 16-byte units of a vector are so placed that the lanes of a phase read different banks.
template <CacheFormat F>
class RawRing {
 public:
  static constexpr int kTokens = 16;
  static constexpr int kSlots = F == CacheFormat::kBf16 ? 0 : is_nvfp4(F) ? 4 : 3;
  static constexpr int kDataBytes = kTokens * vector_bytes(F);
  static constexpr int kScaleBytes = kTokens * vector_scale_bytes(F);
  static constexpr int kSlotBytes = kDataBytes + kScaleBytes;
  static constexpr int kBytes = kProducerThreads / 32 * kSlots * kSlotBytes;

  __device__ __forceinline__ RawRing(std::byte* raw, const LanePlace& place)
      : slots_(raw + static_cast<int>(threadIdx.x) % kProducerThreads / 32 * kSlots * kSlotBytes) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    constexpr int kUnits = vector_bytes(F) / 16;
    to_ = ptx::shared_address(slots_) + lane / kUnits * vector_bytes(F) +
          (swizzle(lane / kUnits, lane % kUnits) << 4);
    scales_to_ = ptx::shared_address(slots_) + kDataBytes + lane * 4;
    from_ =
        place.token * vector_bytes(F) + (swizzle(place.token, place.quarter * (kUnits / 4)) << 4);
    scales_from_ = kDataBytes + place.token * vector_scale_bytes(F) + place.quarter * 2;
  }

  /// Of a plane's 16 tokens, by the warp: from the lane's first 16 bytes and 4 bytes of scales on.
  __device__ __forceinline__ void copy(int slot, const std::byte* data,
                                       const std::byte* scales) const {
#pragma unroll
    for (int i = 0; i < kDataBytes / 512; ++i) {
      ptx::cp_async_cg(to_ + slot * kSlotBytes + i * 512, data + i * 512);
    }
    if constexpr (is_nvfp4(F)) ptx::cp_async_ca_4(scales_to_ + slot * kSlotBytes, scales);
  }

  /// A lane's part of tokens 8i to 8i + 7.
  __device__ __forceinline__ RawPart<F> load(int slot, int i) const {
    RawPart<F> part;
    const std::byte* const from = slots_ + slot * kSlotBytes + i * 8 * vector_bytes(F);
#pragma unroll
    for (int j = 0; j < (is_nvfp4(F) ? 1 : 2); ++j) {
      // A swizzle is an exclusive or: of neighbouring units too.
      part.codes[j] = *reinterpret_cast<const uint4*>(from + (from_ ^ j * 16));
    }
    if constexpr (is_nvfp4(F)) {
      part.scales = *reinterpret_cast<const std::uint16_t*>(slots_ + slot * kSlotBytes +
                                                            scales_from_ + i * 64);
    }
    return part;
  }

 private:
  __device__ __forceinline__ static int swizzle(int token, int unit) {
    return is_nvfp4(F) ? unit ^ (token & 2) : unit ^ ((token & 1) | (token & 2) << 1);
  }

  std::byte* slots_;
  std::uint32_t to_;
  std::uint32_t scales_to_;
  int from_;
  int scales_from_;
};

__device__ __forceinline__ void hand_over(std::uint32_t full) {
  ptx::fence_proxy_async();
  __syncwarp();
  if ((threadIdx.x & 31) == 0) ptx::mbarrier_arrive(full);
}

/// Codes are on their way from global memory while those before are converted.
template <CacheFormat F, class Walk>
__device__ __forceinline__ void produce_converted(const CachePlanes& planes, int kv_head,
                                                  int last_position, const Walk& walk,
                                                  std::byte* operands, std::byte* raw,
                                                  const uint2* table, const PipeAddresses& key_pipe,
                                                  const PipeAddresses& value_pipe) {
  using Ring = RawRing<F>;
  const int thread = static_cast<int>(threadIdx.x) & (kProducerThreads - 1);
  const LanePlace place(thread & 31);
  const int first_token = (thread & ~31) + place.token;
  std::byte* key_to[4];
  std::byte* value_to[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    key_to[i] = operands + first_token * 128 + key_place(place.token, place.quarter, i);
    const int chunk = (place.quarter & 1) * 4 + i;
    value_to[i] = operands + kOperandBytes + (place.quarter >> 1) * kOperandHalfBytes +
                  first_token * 128 + ((chunk ^ place.token) << 4);
  }
  const Ring ring(raw, place);
  const int count = walk.count();
  // A lane's share of K and V in a row of the pool; offsets in a row fit 32 bits.
  const HeadPlanes* const parts_of_row[2] = {&planes.k, &planes.v};
  std::int32_t data_at[2];
  std::int32_t scales_at[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const HeadPlanes& part = *parts_of_row[i];
    data_at[i] = static_cast<std::int32_t>(part.data(kv_head, 0)) +
                 (thread & ~31) * vector_bytes(F) + (thread & 31) * 16;
    scales_at[i] = static_cast<std::int32_t>(part.scales(kv_head, 0)) +
                   (thread & ~31) * vector_scale_bytes(F) + (thread & 31) * 4;
  }
  const auto row_bytes = static_cast<std::uint32_t>(planes.row_bytes);
  const auto row_of = [&](int b) {
    return planes.pool +
           static_cast<std::uint64_t>(static_cast<std::uint32_t>(walk.pool_row(b))) * row_bytes;
  };
  // Half h of a block: of K (0, 1), then of V.
  const auto copy = [&](const std::byte* row, int h, int slot) {
    ring.copy(slot, row + data_at[h / 2] + h % 2 * Ring::kDataBytes,
              row + scales_at[h / 2] + h % 2 * Ring::kScaleBytes);
  };
  if (count == 0) return;
  const std::byte* row = row_of(0);
#pragma unroll
  for (int h = 0; h < Ring::kSlots; ++h) {
    copy(row, h, h);
    ptx::cp_async_commit_group();
  }
  int slot = 0;
  for (int b = 0; b < count; ++b) {
    const std::uint32_t parity = static_cast<std::uint32_t>(b) & 1;
    // Values past the tile's last token may never have been written; P is 0 there.
    const int num_written = last_position + 1 - walk.block(b) * kFastBlockTokens;
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      ptx::cp_async_wait_group<Ring::kSlots - 1>();
      __syncwarp();
      RawPart<F> parts[2];
      GroupScale<F> groups[2][2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        parts[i] = ring.load(slot, i);
        if (h >= 2 && num_written < kFastBlockTokens) {
          if (first_token + h % 2 * 16 + i * 8 >= num_written) parts[i].clear();
        }
        parts[i].load_groups(table, groups[i]);
      }
      if (h == 0) ptx::mbarrier_wait_parity(key_pipe.empty, parity ^ 1);
      if (h == 2) ptx::mbarrier_wait_parity(value_pipe.empty, parity ^ 1);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        std::uint32_t values[16];
        parts[i].expand(groups[i], values);
        const int offset = (h % 2 * 2 + i) * 1024;
        if (h < 2) {
#pragma unroll
          for (int step = 0; step < 8; ++step) {
            *reinterpret_cast<uint2*>(key_to[step % 4] + offset + step / 4 * kOperandHalfBytes) =
                make_uint2(values[2 * step], values[2 * step + 1]);
          }
        } else {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            *reinterpret_cast<uint4*>(value_to[j] + offset) =
                make_uint4(values[4 * j], values[4 * j + 1], values[4 * j + 2], values[4 * j + 3]);
          }
        }
      }
      if (h % 2 == 1) {
        hand_over(h == 1 ? key_pipe.full : value_pipe.full);
      } else {
        __syncwarp();
      }
      const int later = h + Ring::kSlots;
      if (later == 4 && b + 1 < count) row = row_of(b + 1);
      if (later < 4 || b + 1 < count) copy(row, later % 4, slot);
      ptx::cp_async_commit_group();
      slot = slot == Ring::kSlots - 1 ? 0 : slot + 1;
    }
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
                                        const Walk& walk, std::byte* operands, std::byte* raw,
                                        const uint2* table, const PipeAddresses& key_pipe,
                                        const PipeAddresses& value_pipe) {
  if constexpr (F == CacheFormat::kBf16) {
    produce_copied(planes, kv_head, last_position, walk, operands, key_pipe, value_pipe);
  } else {
    produce_converted<F>(planes, kv_head, last_position, walk, operands, raw, table, key_pipe,
                         value_pipe);
  }
}

}  // namespace winnow::cuda::attention_prefill
