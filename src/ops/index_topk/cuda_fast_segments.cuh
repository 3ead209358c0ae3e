// Which blocks a CTA of the decode indexer scores, found on the device from the slices, so that a
// captured graph serves other lengths.
#pragma once

#include "ops/index_topk/cuda_fast_select.cuh"

namespace winnow::cuda {

/// Query rows of a sequence that are scored together.
struct IndexItem {
  const std::int32_t* block_table = nullptr;  // from the first scored block on
  std::int32_t first_token = 0;               // of the batch
  std::int32_t first_position = 0;            // of that token
  std::int32_t first_column = 0;              // row = first_token · heads + first_column
  std::int32_t num_columns = 0;
  std::int32_t num_blocks = 0;  // scored, from init_blocks on
};

/// Blocks [first, first + count) of an item, counted from init_blocks.
struct IndexSegment {
  IndexItem item;
  std::int32_t first = 0;
  std::int32_t count = 0;
};

template <int kColumns>
__device__ IndexItem load_index_item(const IndexDecodeProblem& problem, std::int32_t index) {
  IndexItem item;
  if (index >= problem.num_items) return item;
  const ops::AttentionShape& shape = problem.args.shape;
  const ops::SequenceSlice& slice = problem.args.batch.sequences[index / problem.groups];
  const std::int32_t num_tokens = slice.num_tokens;
  if (num_tokens <= 0 || num_tokens > kIndexDecodeTokens) return item;
  const std::int32_t first_column = index % problem.groups * kColumns;
  const std::int32_t num_columns = min(kColumns, num_tokens * shape.num_index_heads - first_column);
  if (num_columns <= 0) return item;
  item.first_token = slice.first_token;
  item.first_position = slice.first_position;
  item.block_table = slice.block_table + shape.init_blocks;
  item.first_column = first_column;
  item.num_columns = num_columns;
  const std::int32_t last_token = (first_column + num_columns - 1) / shape.num_index_heads;
  item.num_blocks =
      max(0, last_scored_block(shape, item.first_position + last_token) - shape.init_blocks + 1);
  return item;
}

__device__ __forceinline__ std::int32_t inclusive_sum(std::int32_t value, int lane) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const std::int32_t lower = __shfl_up_sync(kAllLanes, value, step);
    if (lane >= step) value += lower;
  }
  return value;
}

/// Range r of `ranges` equal ones of [0, units).
__device__ __forceinline__ std::int32_t range_begin(std::int32_t units, std::int32_t ranges,
                                                    std::int32_t range) {
  return units / ranges * range + min(range, units % ranges);
}

/// The items' blocks cut into segments of nearly equal length, at most kLimit, of which CTA `block`
/// takes every num_blocks-th. None crosses items: its queries would be staged twice, and the warps
/// would run out of blocks twice. The same in every warp.
template <int kColumns, int kLimit>
class IndexSegments {
 public:
  __device__ IndexSegments(const IndexDecodeProblem& problem, std::int32_t block,
                           std::int32_t num_blocks)
      : problem_(problem),
        lane_(static_cast<int>(threadIdx.x % 32U)),
        next_(block),
        stride_(num_blocks) {
    first_counts_ = load_index_item<kColumns>(problem, lane_).num_blocks;
    std::int32_t total = first_counts_;
#pragma unroll 1
    for (std::int32_t first = 32; first < problem.num_items; first += 32) {
      total += load_index_item<kColumns>(problem, first + lane_).num_blocks;
    }
    total = __reduce_add_sync(kAllLanes, total);
    // Items of counts n make Σ ⌈n / length⌉ < total / length + num_items segments, so that this
    // length makes no more than there are slots.
    std::int32_t slots = 0;
    do {
      slots += num_blocks;
      if (slots >= kSlotsPerItem * problem.num_items) {
        const std::int32_t most = slots - problem.num_items + 1;
        length_ = max(1, (total + most - 1) / most);
      }
    } while (length_ > kLimit);
  }

  __device__ bool next(IndexSegment& segment) {
    std::int32_t before = 0;
#pragma unroll 1
    for (std::int32_t first = 0; first < problem_.num_items; first += 32) {
      const std::int32_t count =
          first == 0 ? first_counts_
                     : load_index_item<kColumns>(problem_, first + lane_).num_blocks;
      const std::int32_t parts = (count + length_ - 1) / length_;
      const std::int32_t sum = inclusive_sum(parts, lane_);
      const std::int32_t begin = before + sum - parts;
      const unsigned owner = __ballot_sync(kAllLanes, next_ >= begin && next_ < begin + parts);
      if (owner != 0) {
        const int source = __ffs(static_cast<int>(owner)) - 1;
        const std::int32_t part = next_ - __shfl_sync(kAllLanes, begin, source);
        const std::int32_t all = __shfl_sync(kAllLanes, parts, source);
        segment.item = load_index_item<kColumns>(problem_, first + source);
        segment.first = range_begin(segment.item.num_blocks, all, part);
        segment.count = range_begin(segment.item.num_blocks, all, part + 1) - segment.first;
        next_ += stride_;
        return true;
      }
      before += __shfl_sync(kAllLanes, sum, 31);
    }
    return false;
  }

 private:
  static constexpr int kSlotsPerItem = 8;  // so that what does not divide costs little

  const IndexDecodeProblem& problem_;
  int lane_;
  std::int32_t next_;  // of all segments
  std::int32_t stride_;
  std::int32_t first_counts_;         // blocks of item `lane_`
  std::int32_t length_ = kLimit + 1;  // at most, of a segment
};

}  // namespace winnow::cuda
