// Decode's list of work, made on the device by one block: which experts are active, and whose
// tokens are where.
#pragma once

#include "ops/cuda/block_prefix.cuh"
#include "ops/moe/cuda_fast.h"
#include "ops/moe/cuda_fast_expert.cuh"

namespace winnow::cuda::fast_moe {

constexpr int kChoiceThreads = 512;
constexpr int kChoiceWarps = kChoiceThreads / 32;

struct PlanMemory {
  int counts[kMaxExperts];      // tokens of each
  int next_slots[kMaxExperts];  // that a token of the expert may take
  int room[kChoiceWarps];
};

/// Sorts the pairs by expert and lists the active experts, the shared one first. One block, a
/// thread an expert. The order of an expert's tokens is as it happens: no result depends on it.
__device__ inline void plan_decode(const Layer& layer, const Workspace& work, PlanMemory& memory) {
  const int thread = static_cast<int>(threadIdx.x);
  const int num_pairs = layer.num_pairs();
  for (int e = thread; e < kMaxExperts; e += kChoiceThreads) memory.counts[e] = 0;
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
  for (int i = thread; i < num_pairs; i += kChoiceThreads) {
    atomicAdd(&memory.counts[__ldcg(work.chosen + i)], 1);
  }
  __syncthreads();
  int count = 0;
  if (is_used) count = is_shared ? layer.num_tokens : memory.counts[expert];
  const int num_entries = (count + kBlockTokens - 1) / kBlockTokens;
  // Two sums in one pass: tokens of routed experts (below 2^16) and entries.
  int totals = 0;
  const int before =
      block_prefix<kChoiceWarps>((is_shared ? 0 : count) | num_entries << 16, memory.room, totals);
  int all_groups = 0;
  block_prefix<kChoiceWarps>(num_groups(count), memory.room, all_groups);
  const int first_slot = is_shared ? num_pairs : before & 0xFFFF;
  const int first_entry = before >> 16;
  if (is_used && !is_shared) memory.next_slots[expert] = first_slot;
  if (thread == 0) {
    work.num_active[0] = totals >> 16;
    work.num_active[1] = all_groups;
  }
  for (int b = 0; b < num_entries; ++b) {
    active.first_slot = first_slot + b * kBlockTokens;
    active.num_tokens = min(kBlockTokens, count - b * kBlockTokens);
    work.active[first_entry + b] = active;
  }
  __syncthreads();
  for (int i = thread; i < num_pairs; i += kChoiceThreads) {
    const int slot = atomicAdd(&memory.next_slots[__ldcg(work.chosen + i)], 1);
    work.slot_of[i] = slot;
    work.token_of[slot] = i / layer.top_k;
  }
  if (layer.has_shared()) {
    for (int t = thread; t < layer.num_tokens; t += kChoiceThreads) {
      work.token_of[num_pairs + t] = t;
    }
  }
}

}  // namespace winnow::cuda::fast_moe
