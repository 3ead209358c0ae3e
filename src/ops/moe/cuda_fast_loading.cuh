// How decode's weights reach shared memory: which items there are, one block's ring, its loading
// warp.
//
// An item is a pair of 16-row tiles: gate and up of the same rows (phase 0), or two neighbouring
// tiles of down (phase 1). Items stand in one queue, phase 0 before phase 1, the shared expert's
// first in each; blocks take the next one when they have room for it, so that all end at about the
// same time. A stage of the ring is a stretch of both tiles, two copies of 6 to 7 KB.
#pragma once

#include "ops/cuda/ptx.cuh"
#include "ops/cuda/ring_place.cuh"
#include "ops/moe/cuda_fast.h"
#include "ops/moe/cuda_fast_counters.cuh"
#include "ops/moe/cuda_fast_expert.cuh"

namespace winnow::cuda::fast_moe {

constexpr int kBlocksPerMultiprocessor = 2;  // all resident
constexpr int kTilesOfItem = 2;
constexpr int kWarps = kNumSegments * kTilesOfItem;  // one for each segment of each tile
constexpr int kComputeThreads = kWarps * 32;
constexpr int kThreads = kComputeThreads + 64;
// The warps that all others wait for come first: of those that can issue, the oldest does.
constexpr int kLoadingWarp = 0;
constexpr int kFinishingWarp = 1;
constexpr int kFirstComputeWarp = 2;
constexpr int kStages = kBlocksPerMultiprocessor == 1 ? 15 : 7;
constexpr int kTileStageBytes = 6912;
constexpr int kStageBytes = kTilesOfItem * kTileStageBytes;

/// Pieces (cuda_fast.h) of each tile in a stage: a divisor of kNumSegments.
__host__ __device__ constexpr int pieces_of_stage(QuantScheme scheme) {
  return scheme == QuantScheme::kNvfp4 ? 4 : 2;
}
static_assert(4 * kPieceChunks * chunk_bytes(QuantScheme::kNvfp4) <= kTileStageBytes);
static_assert(2 * kPieceChunks * chunk_bytes(QuantScheme::kMxfp8) <= kTileStageBytes);

struct Params {
  Layer layer;
  Workspace work;
  int num_blocks;
};

/// What the compute warps need to know of an item.
struct Item {
  static constexpr int kNone = -1;  // as phase: there are no more

  std::int32_t phase;
  std::int32_t entry;
  std::int32_t row;
  std::int32_t num_chunks;  // of a row of weights
  std::int32_t first_slot;
  std::int32_t num_tokens;
  std::int32_t width;
  QuantScheme scheme;
  float scales[kTilesOfItem];  // of finished sums
  std::int32_t tokens[kBlockTokens];
};

/// What the compute warps hand to the finishing one: their sums of one column group (eight tokens)
/// of an item.
struct alignas(16) Sheet {
  float sums[kNumSegments][kTilesOfItem][128];
  std::int32_t phase;
  std::int32_t entry;
  std::int32_t row;
  std::int32_t first_slot;  // of the group
  std::int32_t num_tokens;  // of the group
  float scales[kTilesOfItem];
};

constexpr int kSheets = 3;
constexpr int kMaxCompleteRows = 64;  // that wait at a time

/// One block's shared memory.
struct alignas(128) DecodeMemory {
  std::byte stages[kStages][kStageBytes];
  Sheet sheets[kSheets];
  Item items[kStages];  // whose stage it is
  std::uint64_t full[kStages];
  std::uint64_t empty[kStages];
  std::uint64_t written[kSheets];
  std::uint64_t read[kSheets];
  std::int32_t complete_rows[kMaxCompleteRows];  // of y, for this block to sum
  std::int32_t num_complete_rows;
};
static_assert(kBlocksPerMultiprocessor * (sizeof(DecodeMemory) + 1024) <= 228 * 1024);

/// The queue: entries [0, shared_entries) are the shared expert's, token block by token block.
struct Queue {
  int shared_entries;
  int shared_rows;  // of phase 0
  int routed_rows;
  int hidden_rows;
  int phase0_items;
  int all_items;

  __device__ Queue(const Layer& layer, int num_active)
      : shared_entries(num_shared_entries(layer)),
        shared_rows(layer.shared_width / 16),
        routed_rows(layer.width / 16),
        hidden_rows(layer.hidden / 32),
        phase0_items(shared_entries * shared_rows + (num_active - shared_entries) * routed_rows),
        all_items(phase0_items + num_active * hidden_rows) {}

  /// Items that every layer has, whatever its tokens choose: they need not wait for the routing.
  /// Item i is block i's first.
  __device__ static int num_early(const Layer& layer) {
    return num_shared_entries(layer) * (layer.shared_width / 16);
  }

  /// Token blocks of a row of the shared expert follow each other: its weights come once.
  __device__ void find(int index, int& phase, int& entry, int& row) const {
    phase = index < phase0_items ? 0 : 1;
    const int rows = phase == 0 ? routed_rows : hidden_rows;
    const int of_shared = shared_entries * (phase == 0 ? shared_rows : hidden_rows);
    int i = phase == 0 ? index : index - phase0_items;
    if (i < of_shared) {
      entry = shared_entries == 1 ? 0 : i % shared_entries;
      row = shared_entries == 1 ? i : i / shared_entries;
    } else {
      i -= of_shared;
      entry = shared_entries + i / rows;
      row = i % rows;
    }
  }
};

/// A token block of the shared expert; needs no plan.
__device__ inline ActiveExpert shared_expert(const Layer& layer, int entry) {
  ActiveExpert expert = active_expert(layer.experts[layer.num_experts], layer.shared_width);
  expert.first_slot = layer.num_pairs() + entry * kBlockTokens;
  expert.num_tokens = min(kBlockTokens, layer.num_tokens - entry * kBlockTokens);
  return expert;
}

/// The loading warp.
class Loader {
 public:
  __device__ Loader(const Params& params, DecodeMemory& memory)
      : params_(params),
        memory_(memory),
        policy_(ptx::l2_policy(params.layer.num_tokens <= kBlockTokens)),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ void run(int block, int num_blocks) {
    const Layer& layer = params_.layer;
    const int num_early = min(Queue::num_early(layer), num_blocks);
    std::uint32_t* const next = params_.work.counters + Workspace::kQueue;
    const Queue early(layer, num_shared_entries(layer));
    if (block < num_early) {
      // Weights never change: they may come while the routing, and what precedes it, still runs.
      early.find(block, phase_, entry_, row_);
      expert_ = shared_expert(layer, entry_);
      token_ = entry_ * kBlockTokens + lane_;
      begin_item();
      while (stage_ < num_stages_) load_stage();
    }
    ptx::griddepcontrol_wait();
    const Queue queue(layer, *params_.work.num_active);
    const auto take = [&] {
      return lane_ == 0 ? static_cast<int>(atomicAdd(next, 1U)) + num_early : 0;
    };
    int index = take();
    ActiveExpert expert;
    int phase = 0;
    int entry = 0;
    int row = 0;
    int token = 0;
    bool is_over = false;
    // What the next item is becomes known bit by bit, so that no answer is waited for.
    const auto find = [&] {
      index = __shfl_sync(0xFFFFFFFFU, index, 0);
      is_over = index >= queue.all_items;
      if (is_over) return;
      queue.find(index, phase, entry, row);
      expert = params_.work.active[entry];
      index = take();
    };
    const auto find_tokens = [&] {
      if (!is_over) {
        token = params_.work.token_of[expert.first_slot + min(lane_, expert.num_tokens - 1)];
      }
    };
    find();
    find_tokens();
    while (!is_over) {
      expert_ = expert;
      phase_ = phase;
      entry_ = entry;
      row_ = row;
      token_ = token;
      begin_item();
      while (stage_ < num_stages_) {
        load_stage();
        if (stage_ == 1) find();
        if (stage_ == 3) find_tokens();
      }
      if (num_stages_ < 3) find_tokens();
    }
    ptx::griddepcontrol_launch_dependents();
    wait_empty();
    if (lane_ == 0) {
      memory_.items[ring_.slot].phase = Item::kNone;
      ptx::mbarrier_arrive(ptx::shared_address(memory_.full + ring_.slot));
    } else if (ptx::kRacecheck) {
      ptx::mbarrier_arrive(ptx::shared_address(memory_.full + ring_.slot));
    }
  }

 private:
  __device__ void wait_empty() const {
    ptx::mbarrier_wait_parity(ptx::shared_address(memory_.empty + ring_.slot), ring_.parity ^ 1U);
  }

  __device__ void begin_item() {
    const QuantScheme scheme = phase_ == 0 ? expert_.gate_up_scheme : expert_.down_scheme;
    num_chunks_ = (phase_ == 0 ? params_.layer.hidden : expert_.width) / 64;
    chunk_bytes_ = static_cast<int>(chunk_bytes(scheme));
    stage_chunks_ = pieces_of_stage(scheme) * kPieceChunks;
    num_stages_ = (num_chunks_ + stage_chunks_ - 1) / stage_chunks_;
    stage_ = 0;
    const std::int64_t tile_bytes = static_cast<std::int64_t>(num_chunks_) * chunk_bytes_;
    if (phase_ == 0) {
      tiles_[0] = expert_.gate + row_ * tile_bytes;
      tiles_[1] = expert_.up + row_ * tile_bytes;
    } else {
      tiles_[0] = expert_.down + 2 * row_ * tile_bytes;
      tiles_[1] = tiles_[0] + tile_bytes;
    }
  }

  /// Starts the copies of the item's next stage.
  __device__ void load_stage() {
    wait_empty();
    const int slot = ring_.slot;
    if (stage_ == 0) {
      Item& item = memory_.items[slot];
      item.tokens[lane_] = token_;
      if (lane_ == 0) {
        item.phase = phase_;
        item.entry = entry_;
        item.row = row_;
        item.num_chunks = num_chunks_;
        item.first_slot = expert_.first_slot;
        item.num_tokens = expert_.num_tokens;
        item.width = expert_.width;
        item.scheme = phase_ == 0 ? expert_.gate_up_scheme : expert_.down_scheme;
        item.scales[0] = phase_ == 0 ? expert_.gate_scale : expert_.down_scale;
        item.scales[1] = phase_ == 0 ? expert_.up_scale : expert_.down_scale;
      }
      __syncwarp();
    }
    if (lane_ == 0) {
      const std::uint32_t full = ptx::shared_address(memory_.full + slot);
      const int first = stage_ * stage_chunks_;
      const auto bytes =
          static_cast<std::uint32_t>(min(stage_chunks_, num_chunks_ - first) * chunk_bytes_);
      ptx::mbarrier_arrive_expect_tx(full, kTilesOfItem * bytes);
#pragma unroll
      for (int tile = 0; tile < kTilesOfItem; ++tile) {
        ptx::cp_async_bulk(ptx::shared_address(memory_.stages[slot] + tile * kTileStageBytes),
                           tiles_[tile] + static_cast<std::int64_t>(first) * chunk_bytes_, bytes,
                           full, policy_);
      }
    } else if (ptx::kRacecheck) {
      ptx::mbarrier_arrive(ptx::shared_address(memory_.full + slot));
    }
    ++stage_;
    ring_.advance();
  }

  const Params& params_;
  DecodeMemory& memory_;
  RingPlace<kStages> ring_;
  std::uint64_t policy_;  // an expert's weights come once, unless its tokens are several blocks
  int lane_;
  int phase_ = 0;
  int entry_ = 0;
  int row_ = 0;
  int token_ = 0;  // the lane's
  ActiveExpert expert_;
  const std::byte* tiles_[kTilesOfItem] = {};
  int num_chunks_ = 0;
  int chunk_bytes_ = 0;
  int stage_chunks_ = 0;
  int num_stages_ = 0;
  int stage_ = 0;
};

}  // namespace winnow::cuda::fast_moe
