// Prefill's order of work: tokens by expert, then tiles of up to kPrefillTokens tokens.
#include "ops/cuda/check.h"
#include "ops/linear/cuda_fragments.cuh"
#include "ops/moe/cuda_fast.h"

namespace winnow::cuda::fast_moe {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;

/// Sum over the block, and of the threads before this one. `room` is [kWarps + 1].
__device__ int block_prefix(int value, int* room, int& total) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  int inclusive = value;
  for (int offset = 1; offset < 32; offset *= 2) {
    const int other = __shfl_up_sync(0xFFFFFFFFU, inclusive, offset);
    if (lane >= offset) inclusive += other;
  }
  __syncthreads();
  if (lane == 31) room[warp] = inclusive;
  __syncthreads();
  int before = 0;
  total = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += room[w];
    total += room[w];
  }
  return before + inclusive - value;
}

/// Block e: how many tokens chose expert e, and where they go: after those of lower experts, in
/// ascending order of the token.
__global__ void __launch_bounds__(kThreads) sort_tokens(Layer layer, Workspace work) {
  __shared__ int room[kWarps];
  const int expert = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  const int num_pairs = layer.num_pairs();
  int below = 0;
  for (int i = thread; i < num_pairs; i += kThreads) below += work.chosen[i] < expert ? 1 : 0;
  int first = 0;
  block_prefix(below, room, first);
  int done = 0;
  for (int begin = 0; begin < num_pairs; begin += kThreads) {
    const int i = begin + thread;
    const bool is_mine = i < num_pairs && work.chosen[i] == expert;
    int count = 0;
    const int place = block_prefix(is_mine ? 1 : 0, room, count);
    if (is_mine) {
      work.slot_of[i] = first + done + place;
      work.token_of[first + done + place] = i / layer.top_k;
    }
    done += count;
  }
  if (thread == 0) work.counts[expert] = done;
  if (layer.has_shared()) {
    const int stride = static_cast<int>(gridDim.x) * kThreads;
    for (int t = expert * kThreads + thread; t < layer.num_tokens; t += stride) {
      work.token_of[num_pairs + t] = t;
    }
  }
}

__device__ float fragment_scale(const MatrixPart& part) {
  return part.scheme == QuantScheme::kNvfp4 ? part.matrix_scale * kNvfp4FragmentScale : 1.0F;
}

/// One block, a thread an expert (the shared one first): cuts its tokens into equal blocks and
/// lists the tiles of both phases, rows outer, so that neighbours share weights.
__global__ void __launch_bounds__(kThreads) list_tiles(Layer layer, Workspace work) {
  __shared__ int room[kWarps];
  const int thread = static_cast<int>(threadIdx.x);
  const int shared_experts = layer.has_shared() ? 1 : 0;
  const bool is_shared = thread < shared_experts;
  const int expert = is_shared ? layer.num_experts : thread - shared_experts;
  const bool is_used = thread < layer.num_experts + shared_experts;
  const int count = !is_used ? 0 : is_shared ? layer.num_tokens : work.counts[expert];
  int total = 0;
  const int slots_before = block_prefix(is_shared ? 0 : count, room, total);
  const int first_slot = is_shared ? layer.num_pairs() : slots_before;
  const int num_blocks = (count + kPrefillTokens - 1) / kPrefillTokens;
  const int first_entry = block_prefix(num_blocks, room, total);
  if (thread == 0) *work.num_active = total;
  const int width = is_shared ? layer.shared_width : layer.width;
  const int rows[2] = {(width + kPrefillWidth - 1) / kPrefillWidth,
                       (layer.hidden + kPrefillHidden - 1) / kPrefillHidden};
  int first_tile[2];
  for (int phase = 0; phase < 2; ++phase) {
    first_tile[phase] = block_prefix(num_blocks * rows[phase], room, total);
    if (thread == 0) work.num_tiles[phase] = total;
  }
  if (num_blocks == 0) return;
  const DeviceMlp& mlp = layer.experts[expert];
  for (int b = 0; b < num_blocks; ++b) {
    const int begin = static_cast<int>(static_cast<std::int64_t>(count) * b / num_blocks);
    const int end = static_cast<int>(static_cast<std::int64_t>(count) * (b + 1) / num_blocks);
    work.active[first_entry + b] = {.gate = mlp.gate.data,
                                    .up = mlp.up.data,
                                    .down = mlp.down.data,
                                    .gate_scale = fragment_scale(mlp.gate),
                                    .up_scale = fragment_scale(mlp.up),
                                    .down_scale = fragment_scale(mlp.down),
                                    .first_slot = first_slot + begin,
                                    .num_tokens = end - begin,
                                    .width = width,
                                    .gate_up_scheme = mlp.gate.scheme,
                                    .down_scheme = mlp.down.scheme};
  }
  for (int phase = 0; phase < 2; ++phase) {
    WorkPlace* tile =
        work.tiles + static_cast<std::int64_t>(phase) * max_tiles(layer) + first_tile[phase];
    for (int row = 0; row < rows[phase]; ++row) {
      for (int b = 0; b < num_blocks; ++b) *tile++ = {.entry = first_entry + b, .row = row};
    }
  }
}

}  // namespace

void sort_prefill(const Layer& layer, const Workspace& work, cudaStream_t stream) {
  sort_tokens<<<static_cast<unsigned>(layer.num_experts), kThreads, 0, stream>>>(layer, work);
  check_launch("sort_tokens");
  list_tiles<<<1, kThreads, 0, stream>>>(layer, work);
  check_launch("list_tiles");
}

}  // namespace winnow::cuda::fast_moe
