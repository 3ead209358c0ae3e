// The second launch of the decode indexer: exact selection of the best blocks. A candidate is one
// 64-bit key, unique among the blocks of a row: the score in an order-preserving form above, the
// complement of the block below, so that larger keys are better and equal scores go to the lower
// block. Key 0 is "none".
//
// Loops over the steps of a sort stay loops: this code runs once a launch, so its instructions come
// from memory, and fetching them would cost more than the steps do.
#pragma once

#include <cstdint>

#include "ops/cuda/cache_fragments.cuh"
#include "ops/index_topk/cuda_fast_decode.h"

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

/// One call: what both launches are given.
struct IndexDecodeProblem {
  IndexDecodeArgs args;
  std::int32_t groups = 1;  // items of a sequence
  std::int32_t num_items = 0;
  std::int32_t row_stride = 0;  // of scores
  float* scores = nullptr;      // [rows][row_stride]: blocks from init_blocks on
};

__device__ inline std::int32_t last_scored_block(const ops::AttentionShape& shape,
                                                 std::int32_t position) {
  return position / kFastBlockTokens - shape.local_blocks;
}

inline constexpr int kSelectThreads = 128;
inline constexpr int kSelectCandidates = 128;

struct SelectShared {
  std::uint32_t maxima[kSelectThreads];
  std::uint64_t candidates[kSelectCandidates];
  int num_candidates;
};

/// One row by a CTA of kSelectThreads. The 16th largest of 32 lanes' maxima bounds the 16th best
/// score from below, and about twenty blocks reach it, which are sorted; many equal scores only
/// make the last step longer. Waits for the launch before.
__device__ inline void select_index_row(const IndexDecodeProblem& problem, SelectShared& shared,
                                        std::int32_t row) {
  auto& maxima = shared.maxima;
  auto& candidates = shared.candidates;
  int& num_candidates = shared.num_candidates;
  const IndexDecodeArgs& args = problem.args;
  const ops::AttentionShape& shape = args.shape;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const std::int32_t token = row / shape.num_index_heads;
  const std::int32_t last = args.batch.positions[token] / kFastBlockTokens;
  const std::int32_t num_tokens = args.batch.sequences[args.batch.sequence_of[token]].num_tokens;
  if (thread == 0) num_candidates = 0;
  if (num_tokens > kIndexDecodeTokens) return;
  const int count = max(0, last - shape.local_blocks - shape.init_blocks + 1);
  const auto* const scores =
      reinterpret_cast<const float4*>(problem.scores + std::int64_t{row} * problem.row_stride);
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();

  const auto ordered_at = [&](float score, int i) { return i < count ? ordered_score(score) : 0; };
  std::uint32_t best = 0;
#pragma unroll 8
  for (int i = thread; 4 * i < count; i += kSelectThreads) {
    const float4 four = scores[i];
    best = max(max(best, max(ordered_at(four.x, 4 * i), ordered_at(four.y, 4 * i + 1))),
               max(ordered_at(four.z, 4 * i + 2), ordered_at(four.w, 4 * i + 3)));
  }
  maxima[thread] = best;
  __syncthreads();
  best = max(max(maxima[lane], maxima[lane + 32]), max(maxima[lane + 64], maxima[lane + 96]));
  best = sort_lanes_descending(best, lane);
  const std::uint32_t bound = max(__shfl_sync(kAllLanes, best, kSelectRank - 1), 1U);
  const auto offer = [&](float score, int i) {
    const std::uint32_t ordered = ordered_at(score, i);
    if (ordered < bound) return;
    const int slot = atomicAdd(&num_candidates, 1);
    if (slot < kSelectCandidates) candidates[slot] = block_key(ordered, i + shape.init_blocks);
  };
#pragma unroll 2
  for (int i = thread; 4 * i < count; i += kSelectThreads) {
    const float4 four = scores[i];
    offer(four.x, 4 * i);
    offer(four.y, 4 * i + 1);
    offer(four.z, 4 * i + 2);
    offer(four.w, 4 * i + 3);
  }
  __syncthreads();
  if (thread >= 32) return;
  const bool fits = num_candidates <= kSelectCandidates;
  const std::uint64_t key =
      best_of_all(fits ? num_candidates : count, lane, [&](int i) -> std::uint64_t {
        if (fits) return candidates[i];
        return block_key(ordered_score(reinterpret_cast<const float*>(scores)[i]),
                         i + shape.init_blocks);
      });

  const std::int32_t first_local = max(0, last - shape.local_blocks + 1);
  const std::int32_t num_init = min(shape.init_blocks, first_local);
  const std::int32_t num_forced = num_init + last - first_local + 1;
  std::int32_t block = INT32_MAX;
  if (lane < shape.top_k_blocks - num_forced && key != 0) block = key_block(key);
  const int forced = 31 - lane;  // num_forced ≤ 16: the other end
  if (forced < num_forced) block = forced < num_init ? forced : first_local + forced - num_init;
  block = -sort_lanes_descending(-block, lane);
  if (lane < shape.top_k_blocks) {
    args.blocks[std::int64_t{row} * shape.top_k_blocks + lane] = block == INT32_MAX ? -1 : block;
  }
}

}  // namespace winnow::cuda
