// Decode's list of work, made on the device by one block: which experts are active, whose tokens
// are where, and which items each block of decode takes.
#pragma once

#include "ops/cuda/block_prefix.cuh"
#include "ops/moe/cuda_fast.h"
#include "ops/moe/cuda_fast_expert.cuh"

namespace winnow::cuda::fast_moe {

/// Bytes of a work item's weights over 64: what the list is shared out by.
__device__ inline int pair_cost(QuantScheme scheme, int num_chunks, int num_tokens) {
  const int bytes = static_cast<int>(chunk_bytes(scheme)) / 32;
  const int groups = (num_tokens + 7) / 8;
  return (bytes + (groups - 1) * 8) * num_chunks;
}

constexpr int kChoiceThreads = 512;
constexpr int kChoiceWarps = kChoiceThreads / 32;
constexpr int kMaxEntries = kMaxExperts + 1 + kMaxDecodeTokens * (kMaxTopK + 1) / kBlockTokens + 1;

struct PlanMemory {
  int chosen[kMaxDecodeTokens * kMaxTopK];
  int first_slot[kMaxExperts];
  int room[kChoiceWarps];
  std::uint32_t starts[2][kMaxEntries + 1];  // of each entry's items, in pair_cost
};

/// Sorts the pairs by expert (then token), lists the active experts, the shared one first, and cuts
/// both phases' items into num_blocks runs of about equal bytes. One block, a thread an expert.
__device__ inline void plan_decode(const Layer& layer, const Workspace& work, int num_blocks,
                                   PlanMemory& memory) {
  const int thread = static_cast<int>(threadIdx.x);
  const int num_pairs = layer.num_pairs();
  for (int i = thread; i < num_pairs; i += kChoiceThreads) {
    memory.chosen[i] = __ldcg(work.chosen + i);
  }
  const int num_shared = layer.has_shared() ? 1 : 0;
  const bool is_shared = thread < num_shared;
  const int expert = is_shared ? layer.num_experts : thread - num_shared;
  const bool is_used = thread < layer.num_experts + num_shared;
  ActiveExpert active;
  if (is_used) {
    const DeviceMlp& mlp = layer.experts[expert];
    active = active_expert(mlp, is_shared ? layer.shared_width : layer.width);
  }
  __syncthreads();
  int count = is_shared ? layer.num_tokens : 0;
  if (is_used && !is_shared) {
    for (int i = 0; i < num_pairs; ++i) count += memory.chosen[i] == expert ? 1 : 0;
  }
  const int num_entries = (count + kBlockTokens - 1) / kBlockTokens;
  // Two sums in one pass: tokens of routed experts (below 2^16) and entries.
  int totals = 0;
  const int before =
      block_prefix<kChoiceWarps>((is_shared ? 0 : count) | num_entries << 16, memory.room, totals);
  const int first_slot = is_shared ? num_pairs : before & 0xFFFF;
  const int first_entry = before >> 16;
  const int all_entries = totals >> 16;
  if (is_used && !is_shared) memory.first_slot[expert] = first_slot;
  if (thread == 0) *work.num_active = all_entries;
  int costs[2] = {0, 0};
  for (int b = 0; b < num_entries; ++b) {
    const int tokens = min(kBlockTokens, count - b * kBlockTokens);
    costs[0] += pair_cost(active.gate_up_scheme, layer.hidden / 64, tokens) * (active.width / 16);
    costs[1] += pair_cost(active.down_scheme, active.width / 64, tokens) * (layer.hidden / 32);
  }
  int all_costs[2];
  int starts[2];
  for (int phase = 0; phase < 2; ++phase) {
    starts[phase] = block_prefix<kChoiceWarps>(costs[phase], memory.room, all_costs[phase]);
  }
  for (int b = 0; b < num_entries; ++b) {
    const int tokens = min(kBlockTokens, count - b * kBlockTokens);
    memory.starts[0][first_entry + b] = static_cast<std::uint32_t>(starts[0]);
    memory.starts[1][first_entry + b] = static_cast<std::uint32_t>(starts[1]);
    starts[0] += pair_cost(active.gate_up_scheme, layer.hidden / 64, tokens) * (active.width / 16);
    starts[1] += pair_cost(active.down_scheme, active.width / 64, tokens) * (layer.hidden / 32);
    active.first_slot = first_slot + b * kBlockTokens;
    active.num_tokens = tokens;
    work.active[first_entry + b] = active;
  }
  if (thread == 0) {
    memory.starts[0][all_entries] = static_cast<std::uint32_t>(all_costs[0]);
    memory.starts[1][all_entries] = static_cast<std::uint32_t>(all_costs[1]);
  }
  __syncthreads();
  for (int i = thread; i < num_pairs; i += kChoiceThreads) {
    const int chosen = memory.chosen[i];
    int slot = memory.first_slot[chosen];
    for (int j = 0; j < i; ++j) slot += memory.chosen[j] == chosen ? 1 : 0;
    work.slot_of[i] = slot;
    work.token_of[slot] = i / layer.top_k;
  }
  if (layer.has_shared()) {
    for (int t = thread; t < layer.num_tokens; t += kChoiceThreads) {
      work.token_of[num_pairs + t] = t;
    }
  }
  const int shared_entries =
      (layer.has_shared() ? layer.num_tokens + kBlockTokens - 1 : 0) / kBlockTokens;
  for (int i = thread; i < 2 * (num_blocks + 1); i += kChoiceThreads) {
    const int phase = i / (num_blocks + 1);
    const int block = i % (num_blocks + 1);
    const std::uint32_t* const starts = memory.starts[phase];
    const std::uint32_t all = starts[all_entries];
    // all · block / num_blocks without leaving 32 bits.
    const auto blocks = static_cast<std::uint32_t>(num_blocks);
    const std::uint32_t target = all / blocks * static_cast<std::uint32_t>(block) +
                                 all % blocks * static_cast<std::uint32_t>(block) / blocks;
    WorkPlace place{.entry = all_entries, .row = 0};
    if (target < all) {
      int low = 0;  // the last entry that starts at or before target
      int high = all_entries;
      while (high - low > 1) {
        const int middle = (low + high) / 2;
        (starts[middle] <= target ? low : high) = middle;
      }
      const int rows = phase == 1 ? layer.hidden / 32
                                  : (low < shared_entries ? layer.shared_width : layer.width) / 16;
      const std::uint32_t cost = (starts[low + 1] - starts[low]) / static_cast<std::uint32_t>(rows);
      place.entry = low;
      place.row = static_cast<int>((target - starts[low] + cost - 1) / cost);
      if (place.row >= rows) place = {.entry = low + 1, .row = 0};
    }
    work.begins[i] = place;
  }
}

}  // namespace winnow::cuda::fast_moe
