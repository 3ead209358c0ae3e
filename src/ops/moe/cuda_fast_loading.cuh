// How decode's weights reach shared memory: which items a block has, the rings, the loading warp.
#pragma once

#include "ops/cuda/ptx.cuh"
#include "ops/moe/cuda_fast.h"

namespace winnow::cuda::fast_moe {

constexpr int kWarps = kNumSegments;
constexpr int kComputeThreads = kWarps * 32;
constexpr int kThreads = kComputeThreads + 32;  // and a warp that loads
constexpr int kStages = 3;
constexpr int kStageBytes = 3456;                // a pair of tiles' chunks: 3 NVFP4 or 1 MXFP8 each
constexpr int kSumFloats = kWarps * 2 * 32 * 4;  // of one column group
constexpr int kRingBytes = kWarps * kStages * kStageBytes;

/// What a block's compute threads tell each other.
struct Board {
  int complete_rows[2];
  bool is_last;
};

constexpr int kSharedBytes =
    kRingBytes + 2 * kSumFloats * 4 + 2 * kWarps * kStages * 8 + static_cast<int>(sizeof(Board));
static_assert(kDecodeBlocksPerMultiprocessor * (kSharedBytes + 1024) <= 228 * 1024);
static_assert(kComputeThreads == 128, "a thread for each element of two summed tiles");

__host__ __device__ constexpr int chunks_of_stage(QuantScheme scheme) {
  return scheme == QuantScheme::kNvfp4 ? kPieceChunks : 1;
}
static_assert(2 * kPieceChunks * chunk_bytes(QuantScheme::kNvfp4) <= kStageBytes);
static_assert(2 * chunk_bytes(QuantScheme::kMxfp8) <= kStageBytes);

__device__ inline std::uint32_t load_acquire(const std::uint32_t* p) {
  std::uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
  return value;
}

/// *p += 1 after everything that this thread, and by barriers others of its block, wrote before.
/// Unlike a fence it leaves L1 as it is.
__device__ inline std::uint32_t add_release(std::uint32_t* p) {
  std::uint32_t before;
  asm volatile("atom.release.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(p) : "memory");
  return before;
}

__device__ __forceinline__ void compute_sync() {
  asm volatile("bar.sync 1, %0;" ::"n"(kComputeThreads) : "memory");
}

struct Params {
  Layer layer;
  Workspace work;
  int num_blocks;
};

/// Neighbouring items of one expert and phase.
struct Run {
  const ActiveExpert* expert = nullptr;
  int phase = 0;
  int entry = 0;
  int first_row = 0;  // tile pairs
  int end_row = 0;
  int num_chunks = 0;  // of a row of weights
  QuantScheme scheme = QuantScheme::kNvfp4;
};

/// The runs of one block, in order.
class Runs {
 public:
  __device__ void start(const Params& params, int block) {
    block_ = block;
    start_phase(params, 0);
  }

  /// False when there are no more.
  __device__ bool next(const Params& params, Run& run) {
    while (place_.entry > end_.entry || (place_.entry == end_.entry && place_.row >= end_.row)) {
      if (phase_ == 1) return false;
      start_phase(params, 1);
    }
    const ActiveExpert& expert = params.work.active[place_.entry];
    run.expert = &expert;
    run.phase = phase_;
    run.entry = place_.entry;
    run.first_row = place_.row;
    const int num_rows = phase_ == 0 ? expert.width / 16 : params.layer.hidden / 32;
    run.end_row = place_.entry == end_.entry ? end_.row : num_rows;
    run.num_chunks = (phase_ == 0 ? params.layer.hidden : expert.width) / 64;
    run.scheme = phase_ == 0 ? expert.gate_up_scheme : expert.down_scheme;
    place_ = {.entry = place_.entry + 1, .row = 0};
    return true;
  }

 private:
  /// Blocks of one multiprocessor, as they are usually placed, take neighbouring runs: their
  /// tokens' columns are then the same ones in L1.
  __device__ void start_phase(const Params& params, int phase) {
    const int num_multiprocessors = params.num_blocks / kDecodeBlocksPerMultiprocessor;
    const int rank = block_ % num_multiprocessors * kDecodeBlocksPerMultiprocessor +
                     block_ / num_multiprocessors;
    const WorkPlace* const begins = params.work.begins + phase * (params.num_blocks + 1) + rank;
    phase_ = phase;
    place_ = begins[0];
    end_ = begins[1];
  }

  int block_;
  int phase_;
  WorkPlace place_;
  WorkPlace end_;
};

/// Fills one warp's ring: the pieces of its segment of each item in order. A lane of the loading
/// warp has one for each ring.
class Fetcher {
 public:
  __device__ void start(const Params& params, int block, int segment) {
    segment_ = segment;
    runs_.start(params, block);
    next_run(params);
  }

  __device__ bool done() const { return rows_left_ == 0; }

  /// Starts the copies of the next stage into `slot`.
  __device__ void fetch(const Params& params, std::uint32_t slot, std::uint32_t barrier) {
    const int piece = piece_;
    const int chunk = chunk_;
    const int end = min(num_chunks_, (piece + 1) * kPieceChunks);
    const int count = min(stage_chunks_, end - chunk);
    const auto bytes = static_cast<std::uint32_t>(count * bytes_);
    const std::byte* const at = row_ + chunk * bytes_;
    ptx::mbarrier_arrive_expect_tx(barrier, 2 * bytes);
    ptx::cp_async_bulk(slot, at, bytes, barrier);
    ptx::cp_async_bulk(slot + bytes, at + gap_, bytes, barrier);
    chunk_ = chunk + count;
    if (chunk + count < end) return;
    piece_ = piece + kNumSegments;
    chunk_ = (piece + kNumSegments) * kPieceChunks;
    if (chunk_ < num_chunks_) return;
    piece_ = segment_;
    chunk_ = segment_ * kPieceChunks;
    row_ += row_bytes_;
    if (--rows_left_ == 0) next_run(params);
  }

 private:
  /// Passes over runs in which the segment is empty.
  __device__ void next_run(const Params& params) {
    rows_left_ = 0;
    Run run;
    while (runs_.next(params, run)) {
      if (segment_ * kPieceChunks >= run.num_chunks) continue;
      piece_ = segment_;
      chunk_ = segment_ * kPieceChunks;
      num_chunks_ = run.num_chunks;
      bytes_ = static_cast<int>(chunk_bytes(run.scheme));
      stage_chunks_ = chunks_of_stage(run.scheme);
      rows_left_ = run.end_row - run.first_row;
      const std::int64_t tile_bytes = static_cast<std::int64_t>(run.num_chunks) * bytes_;
      if (run.phase == 0) {
        row_ = run.expert->gate + run.first_row * tile_bytes;
        gap_ = run.expert->up - run.expert->gate;
        row_bytes_ = tile_bytes;
      } else {
        row_ = run.expert->down + 2 * run.first_row * tile_bytes;
        gap_ = tile_bytes;
        row_bytes_ = 2 * tile_bytes;
      }
      return;
    }
  }

  Runs runs_;
  const std::byte* row_;  // the first tile of the pair; the second is gap_ further
  std::int64_t gap_;
  std::int64_t row_bytes_;  // to the next pair
  int segment_;
  int rows_left_;
  int piece_;
  int chunk_;
  int num_chunks_;
  int bytes_;  // of a chunk
  int stage_chunks_;
};

/// One warp's ring and the place of one of its two sides.
struct Ring {
  std::byte* stages;
  std::uint64_t* full;
  std::uint64_t* empty;
  int slot = 0;
  std::uint32_t parity = 0;

  __device__ Ring(std::byte* bytes, int warp)
      : stages(bytes + warp * kStages * kStageBytes),
        full(reinterpret_cast<std::uint64_t*>(bytes + kRingBytes + 2 * kSumFloats * 4) +
             2 * warp * kStages),
        empty(full + kStages) {}

  __device__ void advance() {
    if (++slot == kStages) {
      slot = 0;
      parity ^= 1U;
    }
  }
  __device__ const std::byte* stage() const { return stages + slot * kStageBytes; }
  __device__ void wait_full() const {
    ptx::mbarrier_wait_parity(ptx::shared_address(full + slot), parity);
  }
  __device__ bool is_empty() const {
    return ptx::mbarrier_try_wait_parity(ptx::shared_address(empty + slot), parity ^ 1U);
  }
  /// Every lane has read the stage.
  __device__ void release() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ptx::shared_address(empty + slot));
    advance();
  }
};

/// The loading warp: lane w fills warp w's ring. Lanes poll in turn, so none holds up another.
__device__ inline void load_rings(const Params& params, std::byte* bytes, int block) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane >= kWarps) return;
  Ring ring(bytes, lane);
  Fetcher fetcher;
  fetcher.start(params, block, lane);
  while (!fetcher.done()) {
    if (!ring.is_empty()) continue;
    fetcher.fetch(params, ptx::shared_address(ring.stages + ring.slot * kStageBytes),
                  ptx::shared_address(ring.full + ring.slot));
    ring.advance();
  }
}

}  // namespace winnow::cuda::fast_moe
