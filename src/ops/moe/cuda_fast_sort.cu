// Prefill's order of work: tokens by expert, tiles of up to kPrefillTokens tokens, and the inputs
// in the form that the tiles copy.
#include "ops/cuda/block_prefix.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/moe/cuda_fast.h"
#include "ops/moe/cuda_fast_expert.cuh"

namespace winnow::cuda::fast_moe {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;

/// Block e: how many tokens chose expert e.
__global__ void __launch_bounds__(kThreads) count_tokens(Layer layer, Workspace work) {
  __shared__ int room[kWarps];
  ptx::griddepcontrol_wait();
  const int expert = static_cast<int>(blockIdx.x);
  const int num_pairs = layer.num_pairs();
  int mine = 0;
  for (int i = static_cast<int>(threadIdx.x); i < num_pairs; i += kThreads) {
    mine += work.chosen[i] == expert ? 1 : 0;
  }
  int count = 0;
  block_prefix<kWarps>(mine, room, count);
  if (threadIdx.x == 0) work.counts[expert] = count;
}

__device__ int padded(int count) { return (count + 7) / 8 * 8; }
__device__ int num_blocks_of(int count) { return (count + kPrefillTokens - 1) / kPrefillTokens; }

/// What precedes an expert in the order of work, where the shared one comes first; slots are in
/// ascending id, the shared one's last.
struct Before {
  int slots;
  int entries;
  int all_slots;
  int all_entries;
};

__device__ Before sum_before(const Layer& layer, const Workspace& work, int expert, int* room) {
  const int e = static_cast<int>(threadIdx.x);
  const int count = e < layer.num_experts ? work.counts[e] : 0;
  const bool is_before = e < expert;
  const int shared_entries = layer.has_shared() && e == 0 ? num_blocks_of(layer.num_tokens) : 0;
  Before sums;
  block_prefix<kWarps>(is_before ? padded(count) : 0, room, sums.slots);
  block_prefix<kWarps>(padded(count), room, sums.all_slots);
  block_prefix<kWarps>((is_before ? num_blocks_of(count) : 0) + shared_entries, room, sums.entries);
  block_prefix<kWarps>(num_blocks_of(count) + shared_entries, room, sums.all_entries);
  return sums;
}

/// Block e: its tokens' slots in ascending order, its entries (equal blocks of whole eights) and
/// its tiles, rows outer, so that neighbours share weights. The last block is the shared expert.
__global__ void __launch_bounds__(kThreads) sort_tokens(Layer layer, Workspace work) {
  __shared__ int room[kWarps];
  ptx::griddepcontrol_wait();
  const int thread = static_cast<int>(threadIdx.x);
  const int expert = static_cast<int>(blockIdx.x);
  const bool is_shared = expert == layer.num_experts;
  const Before before = sum_before(layer, work, expert, room);
  const int first_slot = is_shared ? before.all_slots : before.slots;
  const int first_entry = is_shared ? 0 : before.entries;
  const int count = is_shared ? layer.num_tokens : work.counts[expert];
  const int width = is_shared ? layer.shared_width : layer.width;
  const int num_pairs = layer.num_pairs();
  if (is_shared) {
    for (int t = thread; t < count; t += kThreads) work.token_of[first_slot + t] = t;
    if (thread == 0) *work.shared_slot = first_slot;
  } else {
    // Each warp has a stretch of the pairs; it first counts the expert's, then places them.
    const int lane = thread % 32;
    const int warp_pairs = (num_pairs + kThreads - 1) / kThreads * 32;
    const int begin = thread / 32 * warp_pairs;
    const int end = min(num_pairs, begin + warp_pairs);
    int mine = 0;
#pragma unroll 4
    for (int i = begin + lane; i < end; i += 32) mine += work.chosen[i] == expert ? 1 : 0;
    int found = 0;
    int slot = first_slot + block_prefix<kWarps>(mine, room, found);
    slot = __shfl_sync(0xFFFFFFFFU, slot, 0);
    for (int first = begin; first < end; first += 32) {
      const int i = first + lane;
      const bool is_mine = i < end && work.chosen[i] == expert;
      const std::uint32_t all = __ballot_sync(0xFFFFFFFFU, is_mine);
      if (is_mine) {
        const int place = slot + __popc(all & ((1U << lane) - 1U));
        work.slot_of[i] = place;
        work.token_of[place] = i / layer.top_k;
      }
      slot += __popc(all);
    }
  }
  if (thread < padded(count) - count) work.token_of[first_slot + count + thread] = -1;
  const int rows[2] = {(width + kPrefillWidth - 1) / kPrefillWidth,
                       (layer.hidden + kPrefillHidden - 1) / kPrefillHidden};
  const int shared_rows = (layer.shared_width + kPrefillWidth - 1) / kPrefillWidth;
  const int routed_rows = (layer.width + kPrefillWidth - 1) / kPrefillWidth;
  const int shared_entries = layer.has_shared() ? num_blocks_of(layer.num_tokens) : 0;
  if (thread == 0 && expert == 0) {
    *work.num_active = before.all_entries;
    work.num_tiles[0] =
        shared_entries * shared_rows + (before.all_entries - shared_entries) * routed_rows;
    work.num_tiles[1] = before.all_entries * rows[1];
  }
  const int num_blocks = num_blocks_of(count);
  if (num_blocks == 0) return;
  const int size = padded((count + num_blocks - 1) / num_blocks);
  const DeviceMlp& mlp = layer.experts[expert];
  for (int b = thread; b < num_blocks; b += kThreads) {
    ActiveExpert active = active_expert(mlp, width);
    active.first_slot = first_slot + b * size;
    active.num_tokens = max(0, min(size, count - b * size));
    work.active[first_entry + b] = active;
  }
  const int first_tile[2] = {
      is_shared ? 0 : shared_entries * shared_rows + (first_entry - shared_entries) * routed_rows,
      first_entry * rows[1]};
  for (int phase = 0; phase < 2; ++phase) {
    WorkPlace* const tiles =
        work.tiles + static_cast<std::int64_t>(phase) * max_tiles(layer) + first_tile[phase];
    for (int i = thread; i < rows[phase] * num_blocks; i += kThreads) {
      tiles[i] = {.entry = first_entry + i % num_blocks, .row = i / num_blocks};
    }
  }
}

/// A warp a token: its columns, read once, to each of its slots.
__global__ void __launch_bounds__(256) gather_inputs(Layer layer, Workspace work) {
  ptx::griddepcontrol_wait();
  const int token = static_cast<int>(blockIdx.x * 8 + threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (token >= layer.num_tokens) return;
  const int piece = lane % 8;
  std::byte* to[kMaxTopK + 1];
#pragma unroll
  for (int k = 0; k <= kMaxTopK; ++k) {
    to[k] = nullptr;
    if (k < layer.top_k || (k == kMaxTopK && layer.has_shared())) {
      const int slot =
          k < layer.top_k ? work.slot_of[token * layer.top_k + k] : *work.shared_slot + token;
      to[k] = work.gathered + std::int64_t{slot} * 128 + (piece ^ slot % 8) * 16;
    }
  }
  const std::byte* const from = work.inputs + (std::int64_t{token} * layer.hidden + piece * 8) * 2;
  const std::int64_t stride = std::int64_t{layer.max_slots()} * 128;
#pragma unroll 2
  for (int chunk = lane / 8; chunk < layer.hidden / 64; chunk += 4) {
    const uint4 values = *reinterpret_cast<const uint4*>(from + chunk * 128);
#pragma unroll
    for (int k = 0; k <= kMaxTopK; ++k) {
      if (to[k] != nullptr) *reinterpret_cast<uint4*>(to[k] + chunk * stride) = values;
    }
  }
}

}  // namespace

void sort_prefill(const Layer& layer, const Workspace& work, cudaStream_t stream) {
  const auto num_experts = static_cast<unsigned>(layer.num_experts);
  launch_overlapping(count_tokens, {.grid = dim3(num_experts), .block = dim3(kThreads)}, stream,
                     "count_tokens", layer, work);
  launch_overlapping(
      sort_tokens,
      {.grid = dim3(num_experts + (layer.has_shared() ? 1U : 0U)), .block = dim3(kThreads)}, stream,
      "sort_tokens", layer, work);
  launch_overlapping(
      gather_inputs,
      {.grid = dim3((static_cast<unsigned>(layer.num_tokens) + 7) / 8), .block = dim3(256)}, stream,
      "gather_inputs", layer, work);
}

}  // namespace winnow::cuda::fast_moe
