// Exact selection of the best blocks. A candidate is one 64-bit key, unique among the blocks of a
// row: the score in an order-preserving form above, the complement of the block below, so that
// larger keys are better and equal scores go to the lower block. Key 0 is "none".
//
// Loops over the steps of a sort stay loops: this code runs once a launch, so its instructions come
// from memory, and fetching them would cost more than the steps do.
#pragma once

#include <cstdint>

namespace winnow::cuda {

inline constexpr int kSelectRank = 16;  // most blocks of a row
inline constexpr unsigned kAllLanes = 0xFFFFFFFFU;

/// 0 for -inf and NaN, which never win; above 0 otherwise.
__device__ __forceinline__ std::uint32_t ordered_score(float score) {
  const std::uint32_t bits = __float_as_uint(score);
  if (!(score > -__builtin_huge_valf())) return 0;
  return bits ^ (static_cast<std::uint32_t>(static_cast<std::int32_t>(bits) >> 31) | 0x80000000U);
}
__device__ __forceinline__ std::uint64_t block_key(std::uint32_t ordered, std::int32_t block) {
  if (ordered == 0) return 0;
  return static_cast<std::uint64_t>(ordered) << 32 | ~static_cast<std::uint32_t>(block);
}
__device__ __forceinline__ std::int32_t key_block(std::uint64_t key) {
  return static_cast<std::int32_t>(~static_cast<std::uint32_t>(key));
}

/// Sorts one value per lane, largest in lane 0.
template <typename T>
__device__ __forceinline__ T sort_lanes_descending(T value, int lane) {
#pragma unroll 1
  for (int size = 2; size <= 32; size *= 2) {
#pragma unroll 1
    for (int step = size / 2; step > 0; step /= 2) {
      const bool keeps_larger = ((lane & size) == 0) == ((lane & step) == 0);
      const T other = __shfl_xor_sync(kAllLanes, value, step);
      const bool is_larger = value > other;
      value = is_larger == keeps_larger ? value : other;
    }
  }
  return value;
}

/// The best 32 of count candidates, sorted, one per lane: every chunk of 32 that holds one of the
/// best 16 so far is sorted and merged. `fetch(i)` gives candidate i < count.
template <typename Fetch>
__device__ __forceinline__ std::uint64_t best_of_all(int count, int lane, const Fetch& fetch) {
  std::uint64_t best = 0;
#pragma unroll 1
  for (int first = 0; first < count; first += 32) {
    std::uint64_t chunk = first + lane < count ? fetch(first + lane) : 0;
    const std::uint64_t bound = __shfl_sync(kAllLanes, best, kSelectRank - 1);
    if (__ballot_sync(kAllLanes, chunk > bound) == 0) continue;
    chunk = sort_lanes_descending(chunk, lane);
    if (first == 0) {
      best = chunk;
      continue;
    }
    const std::uint64_t reversed = __shfl_sync(kAllLanes, chunk, 31 - lane);
    best = sort_lanes_descending(best > reversed ? best : reversed, lane);
  }
  return best;
}

}  // namespace winnow::cuda
