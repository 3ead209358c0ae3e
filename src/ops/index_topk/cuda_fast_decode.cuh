// The indexer for decode and verification steps: all query rows of a sequence against its index
// keys, then the best blocks of each row.
//
// Floor: 72 bytes a key (nvfp4) once for up to 32 rows; 8 × 512K is 302 MB, 71 us at 4.26 TB/s.
//
// Keys are the M side of the tensor cores, query rows ("columns") the N side and stay in registers.
// A persistent grid cuts all blocks of all sequences into equal ranges, found on the device from
// the slices, so that a captured graph serves other lengths. Each warp owns whole blocks: a ring of
// pages in shared memory that the copy engine fills, no barrier between warps, and the block's
// maximum by shuffles. Scores (4 bytes for each row and 9,216 bytes read) go to scratch, from which
// a second, overlapped launch selects with one CTA a row. Only blocks before every row's local
// blocks are scored: all their keys are visible, and local blocks are kept whatever their score.
#pragma once

#include "ops/cuda/cache_fragments.cuh"
#include "ops/index_topk/cuda_fast_select.cuh"

namespace winnow::cuda {

inline constexpr int kIndexWarps = 8;
inline constexpr int kIndexTileUnroll = 2;  // of MMAs in flight, 1 was 8 % slower
inline constexpr int kIndexThreads = 32 * kIndexWarps;
inline constexpr int kIndexRangeBlocks = 256;  // at most in a range: a warp's rows fit its lanes
inline constexpr int kIndexTileKeys = 16;      // of one MMA
inline constexpr int kIndexBf16Row = 2 * kFastDim + 16;  // so that ldmatrix meets no bank conflict

template <CacheFormat F>
struct IndexStage {
  static constexpr int kKeys = is_nvfp4(F) ? 128 : F == CacheFormat::kFp8 ? 32 : 16;
  static constexpr int kRowBytes = F == CacheFormat::kBf16 ? kIndexBf16Row : vector_bytes(F);
  static constexpr int kScaleOffset = kKeys * kRowBytes;
  static constexpr int kBytes = kScaleOffset + kKeys * vector_scale_bytes(F);
  static constexpr int kCopied = kKeys * (vector_bytes(F) + vector_scale_bytes(F));
  static constexpr int kPerBlock = kFastBlockTokens / kKeys;
  static constexpr int kCount = is_nvfp4(F) ? 2 : 4;  // of a warp's ring
};

template <CacheFormat F, int kColumns>
struct IndexShared {
  alignas(128) std::byte stages[kIndexWarps][IndexStage<F>::kCount][IndexStage<F>::kBytes];
  uint2 table[kMagnitudeRows];
  std::uint64_t full[kIndexWarps][IndexStage<F>::kCount];  // mbarriers
  // Queries as operands: of tile t, steps 2i and 2i + 1, lane.
  uint4 queries[kColumns / 8][4][32];
  // Ordered; the odd row keeps its columns in different banks.
  std::uint32_t scores[kIndexRangeBlocks][kColumns + 1];
};

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

template <CacheFormat F, int kColumns>
class RangeScorer {
 public:
  __device__ RangeScorer(const IndexDecodeProblem& problem, IndexShared<F, kColumns>& shared)
      : problem_(problem),
        shared_(shared),
        warp_(static_cast<int>(threadIdx.x >> 5U)),
        lane_(static_cast<int>(threadIdx.x & 31U)),
        g_(static_cast<int>(threadIdx.x >> 2U & 7U)),
        c_(static_cast<int>(threadIdx.x & 3U)) {
    if (lane_ == 0) {
      for (int s = 0; s < S::kCount; ++s) ptx::mbarrier_init(barrier(s), 1);
      ptx::fence_mbarrier_init();
    }
    __syncwarp();
  }

  /// Asks for the segment's first pages; before the wait for the launch before only for those that
  /// no launch of this step writes.
  __device__ void start(const IndexSegment& segment, bool is_early) {
    num_own_ = segment.count > warp_ ? (segment.count - warp_ - 1) / kIndexWarps + 1 : 0;
    if (lane_ < num_own_) {
      rows_ = segment.item.block_table[segment.first + warp_ + lane_ * kIndexWarps];
    }
    std::int32_t safe = num_own_;
    if (is_early) {
      const std::int32_t num_written = segment.item.first_position / kFastBlockTokens -
                                       problem_.args.shape.init_blocks - segment.first - warp_;
      safe = min(safe, num_written > 0 ? (num_written - 1) / kIndexWarps + 1 : 0);
    }
    num_started_ = 0;
    start_up_to(safe * S::kPerBlock);
  }

  /// Scores of the segment that was started into shared memory.
  __device__ void score(const IndexSegment& segment) {
    const std::int32_t num_own = num_own_;
    const std::int32_t row = rows_;
    const std::int32_t num_stages = num_own * S::kPerBlock;
    start_up_to(num_stages);
    stage_queries(segment.item);
    __syncthreads();
    load_queries();
#pragma unroll 1
    for (std::int32_t own = 0; own < num_own; ++own) {
      float best[kTiles][2];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) best[t][0] = best[t][1] = kNegativeInfinity;
#pragma unroll 1
      for (int part = 0; part < S::kPerBlock; ++part) {
        const std::int32_t index = own * S::kPerBlock + part;
        const int slot = static_cast<int>(next_ % S::kCount);
        ptx::mbarrier_wait_parity(barrier(slot), next_ / S::kCount & 1U);
        score_stage(shared_.stages[warp_][slot], best);
        ++next_;
        __syncwarp();
        if (index + S::kCount < num_stages) copy_stage_at(slot, index + S::kCount, row);
      }
      write_maxima(best, warp_ + own * kIndexWarps);
    }
  }

  /// Scores of the segment into scratch.
  __device__ void write(const IndexSegment& segment) {
    const IndexItem& item = segment.item;
    __syncthreads();
    std::uint32_t* const rows =
        problem_.scores + row_of(item) * problem_.row_stride + segment.first;
#pragma unroll 1
    for (int column = warp_; column < item.num_columns; column += kIndexWarps) {
      std::uint32_t* const row = rows + std::int64_t{column} * problem_.row_stride;
#pragma unroll 1
      for (int block = lane_; block < segment.count; block += 32)
        row[block] = shared_.scores[block][column];
    }
    __syncthreads();
  }

 private:
  using S = IndexStage<F>;
  static constexpr int kTiles = kColumns / 8;

  __device__ std::uint32_t barrier(int slot) const {
    return ptx::shared_address(&shared_.full[warp_][slot]);
  }

  /// The ring's stages below `end` that have not been asked for.
  __device__ __forceinline__ void start_up_to(std::int32_t end) {
#pragma unroll
    for (int s = 0; s < S::kCount; ++s) {
      if (s < num_started_ || s >= end) continue;
      copy_stage_at(static_cast<int>((next_ + static_cast<std::uint32_t>(s)) % S::kCount), s,
                    rows_);
    }
    num_started_ = max(num_started_, min(end, S::kCount));
  }

  /// Part index % kPerBlock of the warp's block index / kPerBlock, whose row lane index / kPerBlock
  /// holds.
  __device__ void copy_stage_at(int slot, std::int32_t index, std::int32_t rows) {
    const std::int32_t row = __shfl_sync(kAllLanes, rows, index / S::kPerBlock);
    const int first_key = index % S::kPerBlock * S::kKeys;
    const CachePlanes& planes = problem_.args.planes;
    const std::byte* const base = planes.row(row);
    const std::uint32_t stage = ptx::shared_address(shared_.stages[warp_][slot]);
    if constexpr (F == CacheFormat::kBf16) {
      if (lane_ == 0) ptx::mbarrier_arrive_expect_tx(barrier(slot), S::kCopied);
      __syncwarp();
      if (lane_ < S::kKeys) {
        ptx::cp_async_bulk(stage + static_cast<std::uint32_t>(lane_ * S::kRowBytes),
                           base + planes.index_k.data(0, first_key + lane_), vector_bytes(F),
                           barrier(slot));
      }
    } else if (lane_ == 0) {
      ptx::mbarrier_arrive_expect_tx(barrier(slot), S::kCopied);
      ptx::cp_async_bulk(stage, base + planes.index_k.data(0, first_key), S::kScaleOffset,
                         barrier(slot));
      if constexpr (is_nvfp4(F)) {
        ptx::cp_async_bulk(stage + S::kScaleOffset, base + planes.index_k.scales(0, first_key),
                           S::kKeys * vector_scale_bytes(F), barrier(slot));
      }
    }
  }

  __device__ std::int64_t row_of(const IndexItem& item) const {
    return std::int64_t{item.first_token} * problem_.args.shape.num_index_heads + item.first_column;
  }

  /// fp32 rows → operands in shared memory, 0 for columns that are not used.
  __device__ void stage_queries(const IndexItem& item) {
    const float* const rows = problem_.args.index_q + row_of(item) * kFastDim;
    auto* const pairs =
        reinterpret_cast<uint2*>(&shared_.queries);  // [tile][step / 2][lane][step % 2]
                                                     // Unrolled: every load before the first use.
#pragma unroll
    for (int round = 0; round < (kTiles * 8 * 32 + kIndexThreads - 1) / kIndexThreads; ++round) {
      const unsigned i = threadIdx.x + static_cast<unsigned>(round * kIndexThreads);
      if (i >= kTiles * 8 * 32) break;
      const int lane = static_cast<int>(i / 2 % 32);
      const int step = static_cast<int>(i / 64 % 4 * 2 + i % 2);
      const int column = static_cast<int>(i / 256 * 8 + i / 8 % 8);
      float2 low{}, high{};
      if (column < item.num_columns) {
        const float* const row = rows + column * kFastDim;
        low = *reinterpret_cast<const float2*>(row + key_dim(F, step, lane % 4 * 2));
        high = *reinterpret_cast<const float2*>(row + key_dim(F, step, lane % 4 * 2 + 8));
      }
      pairs[i] = {pack_operands<F>(low.x, low.y), pack_operands<F>(high.x, high.y)};
    }
  }

  __device__ void load_queries() {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint4 both = shared_.queries[t][i][lane_];
        queries_[t][2 * i][0] = both.x;
        queries_[t][2 * i][1] = both.y;
        queries_[t][2 * i + 1][0] = both.z;
        queries_[t][2 * i + 1][1] = both.w;
      }
    }
  }

  __device__ __forceinline__ void score_stage(const std::byte* stage, float (&best)[kTiles][2]) {
#pragma unroll kIndexTileUnroll
    for (int first = 0; first < S::kKeys; first += kIndexTileKeys) {
      float sums[kTiles][4];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[t][i] = 0.0F;
      }
      score_tile(stage, first, sums);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        best[t][0] = fmaxf(best[t][0], fmaxf(sums[t][0], sums[t][2]));
        best[t][1] = fmaxf(best[t][1], fmaxf(sums[t][1], sums[t][3]));
      }
    }
  }

  __device__ __forceinline__ void score_tile(const std::byte* stage, int first,
                                             float (&sums)[kTiles][4]) {
    if constexpr (F == CacheFormat::kBf16) {
      const std::uint32_t address =
          ptx::shared_address(stage) +
          static_cast<std::uint32_t>((first + lane_ % 16) * S::kRowBytes + lane_ / 16 * 16);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        std::uint32_t keys[4];
        ptx::ldmatrix_x4(keys, address + static_cast<std::uint32_t>(j * 32));
        multiply(keys, j, sums);
      }
    } else {
      KeyFragment keys[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) load_key(stage, first + 8 * half + g_, keys[half]);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const std::uint32_t a[4] = {keys[0].operands[j][0], keys[1].operands[j][0],
                                    keys[0].operands[j][1], keys[1].operands[j][1]};
        multiply(a, j, sums);
      }
    }
  }

  __device__ __forceinline__ void load_key(const std::byte* stage, int key, KeyFragment& fragment) {
    const std::byte* const row = stage + key * S::kRowBytes;
    if constexpr (F == CacheFormat::kFp8) {
      const uint4* const quarter = reinterpret_cast<const uint4*>(row + 32 * c_);
      expand_fp8_key(quarter[0], quarter[1], fragment);
    } else if constexpr (is_nvfp4(F)) {
      const uint4 codes = *reinterpret_cast<const uint4*>(row + 16 * c_);
      const std::uint32_t scales = *reinterpret_cast<const std::uint16_t*>(
          stage + S::kScaleOffset + key * vector_scale_bytes(F) + 2 * c_);
      expand_key<F>(codes, scales, shared_.table, fragment);
    }
  }

  __device__ __forceinline__ void multiply(const std::uint32_t (&a)[4], int j,
                                           float (&sums)[kTiles][4]) {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) mma<F>(sums[t], a, queries_[t][j][0], queries_[t][j][1]);
  }

  /// The maxima over the eight lanes that hold a column: halves of the columns change sides, so
  /// that with 32 columns each lane ends with one.
  __device__ __forceinline__ void write_maxima(const float (&best)[kTiles][2], int block) {
    float value[2 * kTiles];
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) value[i] = best[i / 2][i % 2];
    int first = 0;  // of the values that remain
#pragma unroll
    for (int step = 16, count = 2 * kTiles; step >= 4; step /= 2) {
      if (count > 1) {
        count /= 2;
        const bool keeps_upper = (lane_ & step) != 0;
        if (keeps_upper) first += count;
#pragma unroll
        for (int i = 0; i < count; ++i) {
          const float sent = keeps_upper ? value[i] : value[i + count];
          const float kept = keeps_upper ? value[i + count] : value[i];
          value[i] = fmaxf(kept, __shfl_xor_sync(kAllLanes, sent, step));
        }
      } else {
        value[0] = fmaxf(value[0], __shfl_xor_sync(kAllLanes, value[0], step));
      }
    }
    const int column = first / 2 * 8 + c_ * 2 + first % 2;
    shared_.scores[block][column] = ordered_score(value[0]);
  }

  const IndexDecodeProblem& problem_;
  IndexShared<F, kColumns>& shared_;
  int warp_;
  int lane_;
  int g_, c_;               // lane 4g + c
  std::uint32_t next_ = 0;  // stages consumed so far
  // Of the segment: blocks of this warp, their rows of the pool by lane, stages asked for at first.
  std::int32_t num_own_ = 0;
  std::int32_t rows_ = 0;
  std::int32_t num_started_ = 0;
  std::uint32_t queries_[kTiles][8][2];
};

/// Range r of `ranges` equal ones of [0, units).
__device__ __forceinline__ std::int32_t range_begin(std::int32_t units, std::int32_t ranges,
                                                    std::int32_t range) {
  return units / ranges * range + min(range, units % ranges);
}

/// The segments of ranges block, block + num_blocks, … of all items' blocks. The same in every
/// warp.
template <int kColumns>
class IndexSegments {
 public:
  __device__ IndexSegments(const IndexDecodeProblem& problem, std::int32_t block,
                           std::int32_t num_blocks)
      : problem_(problem), lane_(static_cast<int>(threadIdx.x % 32U)), stride_(num_blocks) {
    first_counts_ = load_index_item<kColumns>(problem, lane_).num_blocks;
    units_ = first_counts_;
#pragma unroll 1
    for (std::int32_t first = 32; first < problem.num_items; first += 32) {
      units_ += load_index_item<kColumns>(problem, first + lane_).num_blocks;
    }
    units_ = __reduce_add_sync(kAllLanes, units_);
    const std::int32_t limit = num_blocks * kIndexRangeBlocks;
    num_ranges_ = num_blocks * max(1, (units_ + limit - 1) / limit);
    set_range(block);
  }

  __device__ bool next(IndexSegment& segment) {
#pragma unroll 1
    while (range_ < num_ranges_) {
#pragma unroll 1
      while (pending_ == 0 && next_item_ < problem_.num_items && before_ < end_) find_overlaps();
      if (pending_ != 0) {
        const int source = __ffs(static_cast<int>(pending_)) - 1;
        pending_ &= pending_ - 1;
        segment.item = load_index_item<kColumns>(problem_, next_item_ - 32 + source);
        const std::int32_t unit = __shfl_sync(kAllLanes, first_unit_, source);
        segment.first = max(begin_ - unit, 0);
        segment.count = min(end_ - unit, segment.item.num_blocks) - segment.first;
        return true;
      }
      set_range(range_ + stride_);
    }
    return false;
  }

 private:
  __device__ void set_range(std::int32_t range) {
    range_ = range;
    begin_ = range_begin(units_, num_ranges_, range);
    end_ = range_begin(units_, num_ranges_, range + 1);
    next_item_ = 0;
    before_ = 0;
  }
  /// Of the next 32 items, one per lane.
  __device__ void find_overlaps() {
    const std::int32_t count =
        next_item_ == 0 ? first_counts_
                        : load_index_item<kColumns>(problem_, next_item_ + lane_).num_blocks;
    const std::int32_t sum = inclusive_sum(count, lane_);
    first_unit_ = before_ + sum - count;
    before_ += __shfl_sync(kAllLanes, sum, 31);
    next_item_ += 32;
    pending_ =
        __ballot_sync(kAllLanes, count > 0 && first_unit_ < end_ && first_unit_ + count > begin_);
  }

  const IndexDecodeProblem& problem_;
  int lane_;
  std::int32_t stride_;
  std::int32_t first_counts_;  // blocks of item `lane_`
  std::int32_t units_;
  std::int32_t num_ranges_;
  std::int32_t range_ = 0, begin_ = 0, end_ = 0;
  std::int32_t next_item_ = 0;   // not yet looked at
  std::int32_t before_ = 0;      // blocks of the items before it
  std::int32_t first_unit_ = 0;  // of item next_item_ - 32 + lane_
  unsigned pending_ = 0;         // lanes whose item overlaps the range
};

/// Ranges block, block + num_blocks, … of the scores, by a CTA of kIndexThreads. The next segment's
/// pages are under way while one is written.
template <CacheFormat F, int kColumns>
__device__ __forceinline__ void score_index_ranges(const IndexDecodeProblem& problem,
                                                   IndexShared<F, kColumns>& shared,
                                                   std::int32_t block, std::int32_t num_blocks) {
  RangeScorer<F, kColumns> scorer(problem, shared);
  IndexSegments<kColumns> segments(problem, block, num_blocks);
  IndexSegment segment;
  bool is_left = segments.next(segment);
  // The batch's arrays and full pages are older than the launch before; only its queries are not.
  if (is_left) scorer.start(segment, true);
  if constexpr (F == CacheFormat::kNvfp4E4m3) {
    fill_scaled_magnitudes(shared.table, static_cast<int>(threadIdx.x), kIndexThreads);
  }
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
#pragma unroll 1
  while (is_left) {
    scorer.score(segment);
    const IndexSegment scored = segment;
    is_left = segments.next(segment);
    if (is_left) scorer.start(segment, false);
    scorer.write(scored);
  }
}

}  // namespace winnow::cuda
