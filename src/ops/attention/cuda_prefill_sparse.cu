// Attention for many tokens, each over its own list of blocks.
//
// Floor: 4 · heads · 128 flops for each query and selected key. 8192 tokens, 64 heads and 2048 keys
// are 0.55 TFLOP, 674 us at 790 TFLOP/s (ending at 64K); a tile also computes the rows of those of
// its tokens that did not select a block, so the floor of a real selection is that times (blocks
// its four tokens name) / 16. Measured on an H200 (cuda_attention_prefill_bench quick): 1.98 ms
// when four neighbours name 22 blocks, 3.53 ms when their lists are independent (58 blocks).
//
// One CTA is four neighbouring tokens and one KV head, and two CTAs share a multiprocessor: while
// one waits for its tensor cores, its lists or its result, the other goes on. A CTA's blocks are
// the union of the tokens' lists, ascending. A producer warpgroup converts each block's K and V
// once to 16-bit operands; a consumer warpgroup takes them, a warp's 16 rows being the query heads
// of one token. A warp whose token did not select the block contributes P = 0, which leaves its
// outputs as they are. Tokens that share little are each left to one warp: cuda_prefill_alone.cuh.
//
// What holds it back is latency (issue slots are 43 % busy, the L1's data path 68 %, tensor cores
// 35 %): four warps a scheduler, two of them conversions in chains of dependent instructions. A
// CTA's beginning, until its first block is there, counts too. Tried and lost: eight tokens a CTA
// with five planes in a ring, P · V behind the next block's scores (spills), the next block's
// scores behind P · V, a third plane in place of the table of magnitudes, a table for each lane,
// raw planes by the copy engine.
//
// Numerics: cache_fragments.cuh. The outputs of a quarter stay in registers, those merged so far in
// the result, where only the lane that owns them looks.
#include <algorithm>
#include <climits>

#include "ops/attention/cuda_prefill_alone.cuh"
#include "ops/attention/cuda_prefill_produce.cuh"
#include "ops/attention/cuda_prefill_softmax.cuh"
#include "ops/attention/cuda_prefill_tile.cuh"
#include "ops/cuda/cache_fragments.cuh"
#include "ops/cuda/softmax_rows.cuh"
#include "ops/cuda/token_tiles.cuh"
#include "ops/cuda/wgmma_f16.cuh"

namespace winnow::cuda {
namespace {

using namespace attention_prefill;

constexpr int kListEntries = kTileTokens * kMaxTopK;
constexpr int kConsumerThreads = 128;
constexpr int kThreads = kConsumerThreads + kProducerThreads;
constexpr int kMaxSharedBytes = 113 * 1024;  // of each of two CTAs
constexpr int kListBarrier = 1;
constexpr int kQueryBarrier = 2;
// From so many blocks on the tokens of a tile have too little in common to share them.
constexpr int kAloneBlocks = 42;
// Their mean is the 128 a thread that the kernel starts with.
constexpr int kProducerRegisters = 56;
constexpr int kConsumerRegisters = 200;
constexpr int kIdleRegisters = 24;
constexpr int kAloneRegisters = 232;

struct Control {
  Pipe pipes[2];  // of K and of V
  TokenTile tile;
  AloneRing alone[kTileTokens];
  std::int32_t num_blocks;
  std::int32_t num_firsts[kListEntries / 32];
  std::int32_t num_entries[kTileTokens];
  alignas(16) std::int32_t entries[kListEntries];  // the tokens' lists
  std::int32_t pool_rows[kListEntries];
  std::int32_t blocks[kListEntries];  // the union
  // Bit t: token t selected it.
  std::uint32_t members[kListEntries];
  std::uint8_t own_places[kTileTokens][kMaxTopK];  // of a token's blocks, when it reads alone
};

constexpr int table_bytes(CacheFormat format) {
  return format == CacheFormat::kNvfp4E4m3 ? kMagnitudeTableBytes : 0;
}
constexpr int alone_ring_bytes(CacheFormat format) {
  return is_nvfp4(format) ? kTileTokens * kAlonePlanes * page_bytes(format) : 0;
}
/// K, V, queries and the producers' ring; or what warps that read alone bring and merge there.
template <CacheFormat F>
constexpr int buffer_bytes() {
  constexpr int kAlone = is_nvfp4(F) ? alone_ring_bytes(F) + kTileTokens * kMergedBytes : 0;
  return std::max(2 * kOperandBytes + kQueryBytes + RawRing<F>::kBytes, kAlone);
}
template <CacheFormat F>
constexpr int shared_bytes() {
  constexpr int kBytes = buffer_bytes<F>() + table_bytes(F) + static_cast<int>(sizeof(Control));
  static_assert(kBytes <= kMaxSharedBytes);
  return kBytes;
}

struct Shared {
  std::byte* operands;  // K, V
  std::byte* queries;   // a K-major operand as pages are
  std::byte* raw;       // the producers' ring
  uint2* table;
  Control* control;
};

template <CacheFormat F>
__device__ Shared carve(std::byte* base) {
  Shared shared{.operands = base};
  shared.queries = base + 2 * kOperandBytes;
  shared.raw = shared.queries + kQueryBytes;
  base += buffer_bytes<F>();
  shared.table = reinterpret_cast<uint2*>(base);
  base += table_bytes(F);
  shared.control = reinterpret_cast<Control*>(base);
  return shared;
}

/// Entry `i` of the tile's lists goes to its place in the ascending union. One thread an entry.
__device__ void unite_lists(const AttentionPrefillArgs& args, const TokenTile& tile,
                            Control& control, int kv_head, int i) {
  const int top_k = args.shape.top_k_blocks;
  const int token = i / kMaxTopK;
  std::int32_t mine = -1;
  if (token < tile.num_tokens && i % kMaxTopK < top_k) {
    const std::int64_t list =
        (std::int64_t{tile.first_token} + token) * args.shape.num_index_heads + kv_head;
    mine = args.blocks[list * top_k + i % kMaxTopK];
  }
  const std::int32_t pool_row = mine >= 0 ? tile.block_table[mine] : 0;
  control.entries[i] = mine;
  control.members[i] = 0;
  const unsigned valid = __ballot_sync(~0U, mine >= 0);
  if (i % kMaxTopK == 0) {
    control.num_entries[token] = __popc(valid >> (i & 16) & 0xFFFFU);
  }
  ptx::bar_sync(kListBarrier, kListEntries);
  // Only the first entry of a block counts; the others take its place.
  const int4* const entries = reinterpret_cast<const int4*>(control.entries);
  const unsigned same = __match_any_sync(~0U, mine);
  bool is_first = mine >= 0 && (same & ((1U << i % 32) - 1)) == 0;
  if (i >= 32) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int4 other = entries[j];
      is_first =
          is_first && other.x != mine && other.y != mine && other.z != mine && other.w != mine;
    }
  }
  const unsigned firsts = __ballot_sync(~0U, is_first);
  if (i % 32 == 0) control.num_firsts[i / 32] = __popc(firsts);
  ptx::bar_sync(kListBarrier, kListEntries);
  control.entries[i] = is_first ? mine : INT_MAX;
  ptx::bar_sync(kListBarrier, kListEntries);
  int place = 0;
#pragma unroll
  for (int j = 0; j < kListEntries / 4; ++j) {
    const int4 other = entries[j];
    place += (other.x < mine) + (other.y < mine) + (other.z < mine) + (other.w < mine);
  }
  if (mine >= 0) atomicOr(&control.members[place], 1U << token);
  if (is_first) {
    control.blocks[place] = mine;
    control.pool_rows[place] = pool_row;
  }
  if (i == 0) control.num_blocks = control.num_firsts[0] + control.num_firsts[1];
}

/// The blocks of a tile.
struct BlockWalk {
  const Control& control;

  __device__ __forceinline__ int count() const { return control.num_blocks; }
  __device__ __forceinline__ int block(int i) const { return control.blocks[i]; }
  __device__ __forceinline__ std::int32_t pool_row(int i) const { return control.pool_rows[i]; }
};

template <CacheFormat F>
__device__ void consume(const AttentionPrefillArgs& args, const Shared& shared, int kv_head) {
  Control& control = *shared.control;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) & 31;

  float outputs[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) outputs[i] = 0.0F;
  Quarter quarter;
  quarter.reset();
  MergedRows total;
  int num_read = 0;
  int num_of_quarter = 0;

  const std::uint32_t operands = ptx::shared_address(shared.operands);
  const std::uint64_t queries = ptx::swizzled_descriptor(ptx::shared_address(shared.queries), 1024);
  const std::uint64_t keys = ptx::swizzled_descriptor(operands, 1024);
  const std::uint64_t values =
      ptx::swizzled_descriptor(operands + kOperandBytes, 1024, kOperandHalfBytes);
  const PipeAddresses key_pipe(control.pipes[0]);
  const PipeAddresses value_pipe(control.pipes[1]);
  const int count = control.num_blocks;
  for (int i = 0; i < count; ++i) {
    const std::uint32_t parity = static_cast<std::uint32_t>(i) & 1;
    const bool is_mine = (control.members[i] >> warp & 1) != 0;
    ptx::mbarrier_wait_parity(key_pipe.full, parity);
    float scores[64];
    multiply_keys<F>(queries, keys, scores);
    if (lane == 0) ptx::mbarrier_arrive(key_pipe.empty);
    std::uint32_t p[8][4];
    if (is_mine) {
      // The tile's tokens lie in two blocks at most, and no list names later ones.
      const int seen = i + 2 < count ? kFastBlockTokens
                                     : control.tile.first_position + warp + 1 -
                                           control.blocks[i] * kFastBlockTokens;
      softmax<F>(scores, seen, softmax_factor(args.scale), quarter, outputs, p);
    } else {
      see_nothing(p);
    }
    ptx::mbarrier_wait_parity(value_pipe.full, parity);
    start_values<F>(p, values, outputs);
    const auto wait_outputs = [&] {
      ptx::wgmma_wait_group<0>();
      ptx::pin_registers(outputs);
      if (lane == 0) ptx::mbarrier_arrive(value_pipe.empty);
    };
    if (is_mine) {
      ++num_read;
      ++num_of_quarter;
    }
    const bool is_last = num_read == control.num_entries[warp];
    if (is_mine && (is_last || num_of_quarter == quarter_entries(args.shape.top_k_blocks))) {
      const int group = args.shape.num_heads / args.shape.num_kv_heads;
      float* const out = result_rows(args, control.tile, kv_head);
      total.add(quarter, outputs, softmax_factor(args.scale), is_last, out, group, wait_outputs);
      num_of_quarter = 0;
    } else {
      wait_outputs();
    }
  }
  if (warp < control.tile.num_tokens && control.num_entries[warp] == 0) {
    const int group = args.shape.num_heads / args.shape.num_kv_heads;
    float* const out = result_rows(args, control.tile, kv_head);
    for (int i = lane; i < group * kFastDim; i += 32) out[i] = 0.0F;
  }
}

/// By each consumer warp. Its queries come from the operand that consume() would read.
template <CacheFormat F>
__device__ void consume_alone(const AttentionPrefillArgs& args, const Shared& shared, int kv_head) {
  Control& control = *shared.control;
  const TokenTile& tile = control.tile;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  std::uint32_t queries[8][4];
  const std::byte* const operand = shared.queries;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp * 16 + lane / 4 + half * 8;
      const uint2 places = *reinterpret_cast<const uint2*>(
          operand + (k >> 2) * (kQueryBytes / 2) + row * 128 + key_place(row & 7, lane & 3, k & 3));
      queries[k][half] = places.x;
      queries[k][half + 2] = places.y;
    }
  }
  ptx::fence_proxy_async();
  ptx::bar_sync(kQueryBarrier, kConsumerThreads);  // copies go where the queries were
  if (warp >= tile.num_tokens) return;
  OwnBlocks own{.block = 0, .pool_row = 0, .count = 0};
  for (int first = 0; first < control.num_blocks; first += 32) {
    const int place = first + lane;
    const bool is_mine = place < control.num_blocks && (control.members[place] >> warp & 1) != 0;
    const unsigned mine = __ballot_sync(~0U, is_mine);
    if (is_mine) {
      control.own_places[warp][own.count + __popc(mine & ((1U << lane) - 1))] =
          static_cast<std::uint8_t>(place);
    }
    own.count += __popc(mine);
  }
  __syncwarp();
  if (lane < own.count) {
    const int place = control.own_places[warp][lane];
    own.block = control.blocks[place];
    own.pool_row = control.pool_rows[place];
  }
  std::byte* const ring = shared.operands + warp * kAlonePlanes * page_bytes(F);
  const std::uint32_t full = ptx::shared_address(control.alone[warp].full);
  AloneCopies<F> copies(args.planes, kv_head, own, ptx::shared_address(ring), full);
  float outputs[64];
  attend_alone<F>(copies, own, ring, full,
                  shared.operands + alone_ring_bytes(F) + warp * kMergedBytes, shared.table,
                  queries, tile.first_position + warp, softmax_factor(args.scale),
                  quarter_entries(args.shape.top_k_blocks), outputs);
  write_alone(outputs, args.shape.num_heads / args.shape.num_kv_heads,
              result_rows(args, tile, kv_head));
}

template <CacheFormat F>
__global__ void __launch_bounds__(kThreads, 2)
    sm90_sparse_prefill(const AttentionPrefillArgs args) {
  extern __shared__ __align__(1024) std::byte memory[];
  const Shared shared = carve<F>(memory);
  Control& control = *shared.control;
  const int kv_heads = args.shape.num_kv_heads;
  const int kv_head = static_cast<int>(blockIdx.x) % kv_heads;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const TokenTile tile =
      find_token_tile(args.batch, kTileTokens, static_cast<int>(blockIdx.x) / kv_heads, true);
  if (tile.num_tokens == 0) return;
  if (thread == kThreads - 1) {
    control.tile = tile;
    for (Pipe& pipe : control.pipes) {
      ptx::mbarrier_init(ptx::shared_address(&pipe.full), kProducerThreads / 32);
      ptx::mbarrier_init(ptx::shared_address(&pipe.empty), kConsumerThreads / 32);
    }
    for (AloneRing& ring : control.alone) {
      for (std::uint64_t& full : ring.full) ptx::mbarrier_init(ptx::shared_address(&full), 1);
    }
    ptx::fence_mbarrier_init();
  }
  if (thread < kConsumerThreads) {
    const int group = args.shape.num_heads / kv_heads;
    const std::int64_t first_head =
        (std::int64_t{tile.first_token} + warp) * args.shape.num_heads + kv_head * group;
    store_queries<F>(args.q + first_head * kFastDim, group, warp < tile.num_tokens, warp * 16,
                     shared.queries);
    ptx::fence_proxy_async();
  } else if (thread < kConsumerThreads + kListEntries) {
    unite_lists(args, tile, control, kv_head, thread - kConsumerThreads);
  } else if constexpr (F == CacheFormat::kNvfp4E4m3) {
    fill_scaled_magnitudes(shared.table, thread - kConsumerThreads - kListEntries,
                           kProducerThreads - kListEntries);
  }
  __syncthreads();
  // racecheck loses a block's barrier at which some waited while others met at a named one.
  if constexpr (ptx::kRacecheck) __syncthreads();
  if constexpr (is_nvfp4(F)) {
    if (control.num_blocks >= kAloneBlocks) {
      if (thread >= kConsumerThreads) {
        ptx::setmaxnreg_dec<kIdleRegisters>();
      } else {
        ptx::setmaxnreg_inc<kAloneRegisters>();
        consume_alone<F>(args, shared, kv_head);
      }
      return;
    }
  }
  if (thread >= kConsumerThreads) {
    ptx::setmaxnreg_dec<kProducerRegisters>();
    const int last_position = control.tile.first_position + control.tile.num_tokens - 1;
    produce<F>(args.planes, kv_head, last_position, BlockWalk{control}, shared.operands, shared.raw,
               shared.table, PipeAddresses(control.pipes[0]), PipeAddresses(control.pipes[1]));
  } else {
    ptx::setmaxnreg_inc<kConsumerRegisters>();
    consume<F>(args, shared, kv_head);
  }
}

template <CacheFormat F>
void launch(const AttentionPrefillArgs& args, cudaStream_t stream) {
  cudaFuncSetAttribute(sm90_sparse_prefill<F>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       shared_bytes<F>());
  const auto units = static_cast<unsigned>(
      max_token_tiles(args.batch.num_tokens, args.batch.num_sequences, kTileTokens) *
      args.shape.num_kv_heads);
  sm90_sparse_prefill<F><<<units, kThreads, shared_bytes<F>(), stream>>>(args);
}

}  // namespace

void launch_sparse_prefill(const AttentionPrefillArgs& args, cudaStream_t stream) {
  with_cache_format(cache_format(args.planes.k.dtype, args.planes.mode),
                    [&]<CacheFormat F>() { launch<F>(args, stream); });
}

}  // namespace winnow::cuda
