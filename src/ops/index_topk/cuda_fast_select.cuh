// The second launch of the decode indexer: exact selection of the best blocks. A candidate is one
// 64-bit key, unique among the blocks of a row: the score in an order-preserving form above, the
// complement of the block below, so that larger keys are better and equal scores go to the lower
// block. Key 0 is "none".
//
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
  std::int32_t row_stride = 0;      // of scores
  std::uint32_t* scores = nullptr;  // ordered, [rows][row_stride]: blocks from init_blocks on
};

__device__ inline std::int32_t last_scored_block(const ops::AttentionShape& shape,
                                                 std::int32_t position) {
  return position / kFastBlockTokens - shape.local_blocks;
}

inline constexpr int kSelectThreads = 128;
inline constexpr int kSelectCandidates = kSelectThreads;
inline constexpr int kSelectKept = 8;  // fours of scores that a thread keeps: 4,096 blocks a row

struct SelectShared {
  std::uint64_t candidates[kSelectCandidates];
  std::uint32_t maxima[kSelectThreads];
  std::int32_t chosen[kSelectRank];
  int num_candidates;
};

/// The 16th largest of the lanes' values.
__device__ __forceinline__ std::uint32_t sixteenth_of_lanes(std::uint32_t value, int lane) {
  int rank = 0;
#pragma unroll 8
  for (int i = 0; i < 32; ++i) {
    const std::uint32_t other = __shfl_sync(kAllLanes, value, i);
    rank += static_cast<int>(other > value || (other == value && i < lane));
  }
  const unsigned is_it = __ballot_sync(kAllLanes, rank == kSelectRank - 1);
  return __shfl_sync(kAllLanes, value, __ffs(static_cast<int>(is_it)) - 1);
}

/// One row by a CTA of kSelectThreads. The 16th largest of 32 lanes' maxima bounds the 16th best
/// score from below, and about twenty blocks reach it, whose ranks are counted; many equal scores
/// only make that step longer. Waits for the launch before.
__device__ inline void select_index_row(const IndexDecodeProblem& problem, SelectShared& shared,
                                        std::int32_t row) {
  const IndexDecodeArgs& args = problem.args;
  const ops::AttentionShape& shape = args.shape;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const std::int32_t token = row / shape.num_index_heads;
  const std::int32_t last = args.batch.positions[token] / kFastBlockTokens;
  const std::int32_t num_tokens = args.batch.sequences[args.batch.sequence_of[token]].num_tokens;
  if (thread == 0) shared.num_candidates = 0;
  const int count = max(0, last - shape.local_blocks - shape.init_blocks + 1);
  const std::uint32_t* const scores = problem.scores + std::int64_t{row} * problem.row_stride;
  const auto* const fours = reinterpret_cast<const uint4*>(scores);
  // The next launch may begin beside this one: it waits for this one in turn. Not with few rows:
  // attention's few CTAs would crowd on the multiprocessors that the scores do not use.
  const bool is_early = static_cast<int>(gridDim.x) >= args.num_multiprocessors;
  if (is_early) ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  if (!is_early) ptx::griddepcontrol_launch_dependents();
  if (num_tokens > kIndexDecodeTokens) return;

  // Those beyond the end as 0, which is never chosen.
  const auto load = [&](int i) {
    uint4 four{};
    if (4 * i < count) four = fours[i];
    if (4 * i + 1 >= count) four.y = 0;
    if (4 * i + 2 >= count) four.z = 0;
    if (4 * i + 3 >= count) four.w = 0;
    return four;
  };
  uint4 kept[kSelectKept];
#pragma unroll
  for (int i = 0; i < kSelectKept; ++i) kept[i] = load(thread + i * kSelectThreads);
  std::uint32_t best = 0;
  const auto add = [&](const uint4& four) {
    best = max(max(best, max(four.x, four.y)), max(four.z, four.w));
  };
#pragma unroll
  for (int i = 0; i < kSelectKept; ++i) add(kept[i]);
  const int first_left = kSelectKept * kSelectThreads;
#pragma unroll 4
  for (int i = first_left + thread; 4 * i < count; i += kSelectThreads) add(load(i));
  shared.maxima[thread] = best;
  __syncthreads();
  best = max(max(shared.maxima[lane], shared.maxima[lane + 32]),
             max(shared.maxima[lane + 64], shared.maxima[lane + 96]));
  const std::uint32_t bound = max(sixteenth_of_lanes(best, lane), 1U);
  const auto offer = [&](std::uint32_t score, int i) {
    if (score < bound) return;
    const int slot = atomicAdd(&shared.num_candidates, 1);
    if (slot < kSelectCandidates) shared.candidates[slot] = block_key(score, i + shape.init_blocks);
  };
  const auto offer_four = [&](const uint4& four, int i) {
    if (max(max(four.x, four.y), max(four.z, four.w)) < bound) return;
    offer(four.x, 4 * i);
    offer(four.y, 4 * i + 1);
    offer(four.z, 4 * i + 2);
    offer(four.w, 4 * i + 3);
  };
#pragma unroll
  for (int i = 0; i < kSelectKept; ++i) offer_four(kept[i], thread + i * kSelectThreads);
#pragma unroll 1
  for (int i = first_left + thread; 4 * i < count; i += kSelectThreads) offer_four(load(i), i);
  __syncthreads();

  const std::int32_t first_local = max(0, last - shape.local_blocks + 1);
  const std::int32_t num_init = min(shape.init_blocks, first_local);
  const std::int32_t num_forced = num_init + last - first_local + 1;
  const int wanted = shape.top_k_blocks - num_forced;
  const int num_candidates = shared.num_candidates;
  if (num_candidates <= kSelectCandidates) {
    if (thread < num_candidates) {
      const std::uint64_t key = shared.candidates[thread];
      int rank = 0;
#pragma unroll 4
      for (int i = 0; i < num_candidates; ++i) {
        rank += static_cast<int>(shared.candidates[i] > key);
      }
      if (rank < wanted) shared.chosen[rank] = key_block(key);
    }
  } else if (thread < 32) {
    const std::uint64_t key = best_of_all(
        count, lane, [&](int i) { return block_key(scores[i], i + shape.init_blocks); });
    if (lane < wanted) shared.chosen[lane] = key_block(key);
  }
  __syncthreads();
  if (thread >= 32) return;
  // At most sixteen in all; each goes behind those with a lower number.
  const int num_chosen = min(num_candidates, wanted);
  const int total = num_chosen + num_forced;
  std::int32_t block = INT32_MAX;
  if (lane < num_chosen) {
    block = shared.chosen[lane];
  } else if (lane < total) {
    const int forced = lane - num_chosen;
    block = forced < num_init ? forced : first_local + forced - num_init;
  }
  int place = 0;
#pragma unroll
  for (int i = 0; i < kSelectRank; ++i) {
    place += static_cast<int>(__shfl_sync(kAllLanes, block, i) < block);
  }
  if (lane >= shape.top_k_blocks) return;
  std::int32_t* const out = args.blocks + std::int64_t{row} * shape.top_k_blocks;
  if (lane < total) {
    out[place] = block;
  } else {
    out[lane] = -1;
  }
}

}  // namespace winnow::cuda
