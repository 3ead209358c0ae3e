// The indexer for decode and verification steps: all query rows of a sequence against its index
// keys, then the best blocks of each row.
//
// Floor: 72 bytes a key (nvfp4) once for up to 32 rows; 8 × 512K is 302 MB, 71 us at 4.26 TB/s.
//
// Keys are the M side of the tensor cores, query rows ("columns") the N side (cuda_fast_tiles.cuh).
// A persistent grid takes segments of the sequences' blocks (cuda_fast_segments.cuh). Each warp
// owns whole blocks: a ring of stages in shared memory that the copy engine fills, no barrier of
// the CTA, and the block's maximum by shuffles. Scores (4 bytes for each row and 9,216 bytes read)
// go to scratch, from which a second, overlapped launch selects with one CTA a row. Only blocks
// before every row's local blocks are scored: all their keys are visible, and local blocks are kept
// whatever their score.
#pragma once

#include "ops/cuda/cache_fragments.cuh"
#include "ops/index_topk/cuda_fast_segments.cuh"
#include "ops/index_topk/cuda_fast_tiles.cuh"

namespace winnow::cuda {

/// `Tiles` is IndexWarpTiles or IndexGroupTiles.
template <int kColumns, typename Tiles>
struct IndexShared {
  alignas(128) std::byte stages[Tiles::kWarps][Tiles::kStages][Tiles::Stage::kBytes];
  uint2 table[kMagnitudeRows];
  std::uint64_t full[Tiles::kWarps][Tiles::kStages];  // mbarriers
  alignas(128) typename Tiles::Queries queries;
  // Ordered; the odd row keeps its columns in different banks.
  std::uint32_t scores[Tiles::kSegmentBlocks][kColumns + 1];
};

template <CacheFormat F, int kColumns, typename Tiles>
class SegmentScorer {
 public:
  __device__ SegmentScorer(const IndexDecodeProblem& problem, IndexShared<kColumns, Tiles>& shared)
      : problem_(problem),
        shared_(shared),
        warp_(__shfl_sync(kAllLanes, static_cast<int>(threadIdx.x >> 5U), 0)),
        lane_(static_cast<int>(threadIdx.x & 31U)),
        c_(static_cast<int>(threadIdx.x & 3U)) {
    if (lane_ == 0) {
      for (int s = 0; s < Tiles::kStages; ++s) ptx::mbarrier_init(barrier(s), 1);
      ptx::fence_mbarrier_init();
    }
    __syncwarp();
  }

  /// Asks for the segment's first pages; before the wait for the launch before only for those that
  /// no launch of this step writes.
  __device__ void start(const IndexSegment& segment, bool is_early) {
    num_own_ = segment.count > warp_ ? (segment.count - warp_ - 1) / kWarps + 1 : 0;
    if (lane_ < num_own_) {
      rows_ = segment.item.block_table[segment.first + warp_ + lane_ * kWarps];
    }
    std::int32_t safe = num_own_;
    if (is_early) {
      const std::int32_t num_written = segment.item.first_position / kFastBlockTokens -
                                       problem_.args.shape.init_blocks - segment.first - warp_;
      safe = min(safe, num_written > 0 ? (num_written - 1) / kWarps + 1 : 0);
    }
    num_started_ = 0;
    start_up_to(safe * S::kPerBlock);
  }

  /// Scores of the segment that was started into shared memory. The warps of a team go on together,
  /// each in its own block, or in none.
  __device__ void score(const IndexSegment& segment) {
    const std::int32_t num_stages = num_own_ * S::kPerBlock;
    start_up_to(num_stages);
    stage_queries(segment.item);
    if constexpr (Tiles::kTeamWarps > 1) ptx::fence_proxy_async();
    __syncthreads();
    Tiles tiles;
    tiles.load_queries(shared_.queries);
    const std::int32_t team = warp_ / Tiles::kTeamWarps * Tiles::kTeamWarps;
    const std::int32_t num_rounds =
        segment.count > team ? (segment.count - team - 1) / kWarps + 1 : 0;
#pragma unroll 1
    for (std::int32_t own = 0; own < num_rounds; ++own) {
      const bool has_block = Tiles::kTeamWarps == 1 || own < num_own_;
      IndexMaxima<kColumns> best;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) best[t][0] = best[t][1] = kNegativeInfinity;
#pragma unroll 1
      for (int part = 0; part < S::kPerBlock; ++part) {
        const std::int32_t index = own * S::kPerBlock + part;
        const int slot = static_cast<int>(next_ % kStages);
        if (has_block) ptx::mbarrier_wait_parity(barrier(slot), next_ / kStages & 1U);
        tiles.score_stage(shared_.stages[warp_][slot], has_block, shared_.table, best);
        if (!has_block) continue;
        ++next_;
        __syncwarp();
        if (index + kStages < num_stages) copy_stage_at(slot, index + kStages, rows_);
      }
      if (has_block) write_maxima(best, warp_ + own * kWarps);
    }
  }

  /// Scores of the segment into scratch.
  __device__ void write(const IndexSegment& segment) {
    const IndexItem& item = segment.item;
    __syncthreads();
    std::uint32_t* const rows =
        problem_.scores + row_of(item) * problem_.row_stride + segment.first;
#pragma unroll 1
    for (int column = warp_; column < item.num_columns; column += kWarps) {
      std::uint32_t* const row = rows + std::int64_t{column} * problem_.row_stride;
#pragma unroll 1
      for (int block = lane_; block < segment.count; block += 32)
        row[block] = shared_.scores[block][column];
    }
    __syncthreads();
  }

 private:
  using S = typename Tiles::Stage;
  static constexpr int kWarps = Tiles::kWarps;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr auto kStages = static_cast<std::uint32_t>(Tiles::kStages);
  static constexpr int kTiles = kColumns / 8;

  __device__ std::uint32_t barrier(int slot) const {
    return ptx::shared_address(&shared_.full[warp_][slot]);
  }

  /// The ring's stages below `end` that have not been asked for.
  __device__ __forceinline__ void start_up_to(std::int32_t end) {
#pragma unroll
    for (int s = 0; s < Tiles::kStages; ++s) {
      if (s < num_started_ || s >= end) continue;
      copy_stage_at(static_cast<int>((next_ + static_cast<std::uint32_t>(s)) % Tiles::kStages), s,
                    rows_);
    }
    num_started_ = max(num_started_, min(end, Tiles::kStages));
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
    auto* const words = reinterpret_cast<std::uint32_t*>(&shared_.queries);
    static_assert(kColumns * kFastDim / 2 % kThreads == 0);
#pragma unroll  // every load before the first use
    for (int round = 0; round < kColumns * kFastDim / 2 / kThreads; ++round) {
      const int i = static_cast<int>(threadIdx.x) + round * kThreads;
      const IndexQueryPlace place = Tiles::place_of(i);
      float2 pair{};
      if (place.column < item.num_columns) {
        pair = *reinterpret_cast<const float2*>(rows + place.column * kFastDim +
                                                key_dim(F, place.step, place.position));
      }
      words[i] = pack_operands<F>(pair.x, pair.y);
    }
  }

  /// The maxima over the eight lanes that hold a column: halves of the columns change sides, so
  /// that with 32 columns each lane ends with one.
  __device__ __forceinline__ void write_maxima(const IndexMaxima<kColumns>& best, int block) {
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
  IndexShared<kColumns, Tiles>& shared_;
  int warp_;
  int lane_;
  int c_;                   // lane % 4
  std::uint32_t next_ = 0;  // stages consumed so far
  // Of the segment: blocks of this warp, their rows of the pool by lane, stages asked for at first.
  std::int32_t num_own_ = 0;
  std::int32_t rows_ = 0;
  std::int32_t num_started_ = 0;
};

/// Segments block, block + num_blocks, … of the scores, by a CTA of Tiles::kWarps warps. The next
/// segment's pages are under way while one is written.
template <CacheFormat F, int kColumns, typename Tiles>
__device__ __forceinline__ void score_index_segments(const IndexDecodeProblem& problem,
                                                     IndexShared<kColumns, Tiles>& shared,
                                                     std::int32_t block, std::int32_t num_blocks) {
  SegmentScorer<F, kColumns, Tiles> scorer(problem, shared);
  IndexSegments<kColumns, Tiles::kSegmentBlocks> segments(problem, block, num_blocks);
  IndexSegment segment;
  bool is_left = segments.next(segment);
  // The batch's arrays and full pages are older than the launch before; only its queries are not.
  if (is_left) scorer.start(segment, true);
  if constexpr (F == CacheFormat::kNvfp4E4m3) {
    fill_scaled_magnitudes(shared.table, static_cast<int>(threadIdx.x), 32 * Tiles::kWarps);
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
