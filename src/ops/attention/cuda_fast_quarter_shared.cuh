// What the CTA of a quarter (cuda_fast_quarter.cuh) keeps in shared memory, where one thing takes
// the place of another as it goes on, and a key's codes on the way to its operands.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cuda/cache_fragments.cuh"

namespace winnow::cuda {

inline constexpr int kQuarterWarps = 4;
inline constexpr int kQuarterThreads = 32 * kQuarterWarps;
inline constexpr int kQuarterHeads = 16;
inline constexpr int kQuarterBlocks = 4;

/// `kEarlyValues`: blocks of V with a place of their own, which are asked for at the start: 2, or 0
/// for more CTAs on a multiprocessor. The others go where the first two blocks of K were.
template <CacheFormat F, int kEarlyValues>
struct QuarterShared {
  static_assert(is_nvfp4(F));
  static constexpr int kCodeBytes = kFastBlockTokens * vector_bytes(F);
  static constexpr int kPageBytes = kCodeBytes + kFastBlockTokens * vector_scale_bytes(F);
  static constexpr int kScaleBytes = kPageBytes - kCodeBytes;
  // The 32 keys of a warp in a page of K, which then hold their scores. P of blocks 0 to 3 goes to
  // the second halves of pages 2 and 3 and to their first halves.
  static constexpr int kAreaBytes = kCodeBytes / kQuarterWarps;
  static constexpr int kWeightBytes = 32 * kQuarterHeads * 2;
  static_assert(kAreaBytes == 4 * 4 * 32 * 4 && kAreaBytes == 2 * kWeightBytes);

  alignas(128) std::byte keys[kQuarterBlocks * kPageBytes];
  alignas(128) std::byte values[kEarlyValues == 0 ? 16 : kEarlyValues * kPageBytes];
  uint2 table[F == CacheFormat::kNvfp4E4m3 ? kMagnitudeRows : 2];
  float rescales[kQuarterBlocks][kQuarterHeads];
  float maximum[kQuarterHeads];           // of the quarter
  std::uint64_t full[2][kQuarterBlocks];  // K, V
  std::uint64_t empty[2];                 // places of V
  std::uint64_t merged;

  __device__ __forceinline__ std::byte* area(int block, int warp) {
    return keys + block * kPageBytes + warp * kAreaBytes;
  }
  __device__ __forceinline__ float* maxima(int block, int warp) {
    return reinterpret_cast<float*>(keys + block * kPageBytes + kCodeBytes +
                                    warp * (kScaleBytes / kQuarterWarps));
  }
  __device__ __forceinline__ std::byte* weights(int block, int warp) {
    return block < 2 ? area(2 + block, warp) + kWeightBytes : area(block, warp);
  }
  /// V of a block.
  __device__ __forceinline__ std::byte* value_page(int block) {
    return (block < kEarlyValues ? values : keys) + block % 2 * kPageBytes;
  }
  /// Of heads 8r to 8r + 7, four parts each of this warp's keys: behind the maxima of two blocks.
  __device__ __forceinline__ float* sums(int warp, int r) {
    return maxima(2 + r, warp) + kQuarterHeads;
  }
  // What the four quarters send, where K was.
  static constexpr int kSentDims = kFastDim / 4;
  static constexpr int kSentBytes = 4 * kQuarterHeads * (kSentDims * 4 + 8);
  __device__ __forceinline__ float* sent(int quarter, int head) {
    return reinterpret_cast<float*>(keys) + (quarter * kQuarterHeads + head) * kSentDims;
  }
  __device__ __forceinline__ float2* sent_maximum_and_sum(int quarter, int head) {
    return reinterpret_cast<float2*>(keys + kCodeBytes) + quarter * kQuarterHeads + head;
  }
};

/// A lane's quarter of one key before it is expanded.
template <CacheFormat F>
struct KeyCodes {
  uint4 words;
  GroupScale<F> groups[2];

  __device__ __forceinline__ void load(const uint4& codes, std::uint32_t scales,
                                       const uint2* table) {
    words = codes;
    load_group_scales<F>(scales, table, groups[0], groups[1]);
  }
  /// Operands [0] and [1] of step 2i, then of 2i + 1.
  __device__ __forceinline__ void expand(int i, std::uint32_t (&values)[4]) const {
    const std::uint32_t word = i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
    expand_nvfp4<F>(word, groups[i / 2], values);
  }
};

}  // namespace winnow::cuda
