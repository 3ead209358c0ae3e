// Attention for many tokens: sparse over each token's list of blocks, or dense over all of them.
//
// Floor: 4 · heads · 128 flops for each query and selected key. 8192 tokens, 64 heads and 2048 keys
// are 0.55 TFLOP, 696 us at 790 TFLOP/s; a tile also computes the rows of those of its tokens that
// did not select a block, so the floor of a real selection is that times (blocks its four tokens
// name) / 16.
// Measured on an H200 (cuda_attention_prefill_bench time), ending at 64K: 2.42 ms when four
// neighbours name 22 blocks, 5.8 ms when their lists are independent (58 blocks). Tensor cores are
// a third busy: the two consumer warpgroups run in step, since only two blocks fit beside each
// other, and conversion competes with the softmax for issue slots.
//
// One CTA is eight neighbouring tokens and one KV head. Its blocks are the union of the tokens'
// lists, ascending; two producer warpgroups copy each block's K and V (bulk copies, some blocks
// ahead) and convert them once to 16-bit operands. Two consumer warpgroups take four tokens each,
// a warp's 16 rows being the query heads of one token; each skips blocks that none of its tokens
// selected, and while one is in its softmax the other has the tensor cores. A warp whose token did
// not select the block contributes P = 0, which leaves its outputs as they are.
//
// Numerics: cache_fragments.cuh. The outputs of a quarter stay in registers, those merged so far in
// the result, where only the lane that owns them looks.
#include "ops/attention/cuda_prefill.h"

#include <climits>

#include "ops/attention/cuda_prefill_softmax.cuh"
#include "ops/cuda/cache_fragments.cuh"
#include "ops/cuda/page_operand.cuh"
#include "ops/cuda/ring_place.cuh"
#include "ops/cuda/token_tiles.cuh"
#include "ops/cuda/wgmma_f16.cuh"

namespace winnow::cuda {
namespace {

using namespace attention_prefill;

constexpr int kTileTokens = 8;
constexpr int kRowsPerToken = 16;  // query heads of one KV head at most
constexpr int kMaxTopK = 16;
constexpr int kListEntries = kTileTokens * kMaxTopK;
constexpr int kStages = 2;  // converted blocks
constexpr int kConsumerThreads = 256;
constexpr int kProducerThreads = 256;
constexpr int kThreads = kConsumerThreads + kProducerThreads;
constexpr int kConsumerWarps = kConsumerThreads / 32;
constexpr int kQueryBytes = 64 * kFastDim * 2;  // of a warpgroup
constexpr int kMaxSharedBytes = 227 * 1024;
constexpr int kListBarrier = 1;
constexpr int kProducerBarrier = 2;  // and the next: one a warpgroup
constexpr int kQueryBarrier = 4;     // likewise
// Their mean is the 128 a thread that the kernel starts with.
constexpr int kProducerRegisters = 56;
constexpr int kConsumerRegisters = 200;

/// Raw planes of K, and of V, in shared memory: what fits beside the rest.
constexpr int raw_stages(CacheFormat format) {
  return is_nvfp4(format) ? 3 : format == CacheFormat::kFp8 ? 2 : 1;
}

/// K (0) or V (1) on its way: raw in shared memory, then converted.
struct Pipe {
  std::uint64_t raw_full[3];
  std::uint64_t full[kStages];
  std::uint64_t empty[kStages];
};

struct Control {
  Pipe pipes[2];
  TokenTile tile;
  std::int32_t num_blocks;
  alignas(16) std::int32_t entries[kListEntries];  // the tokens' lists
  std::int32_t pool_rows[kListEntries];
  std::int32_t num_entries[kTileTokens];
  std::int32_t blocks[kListEntries];    // the union
  std::uint32_t members[kListEntries];  // bit t: token t selected it
};

constexpr int table_bytes(CacheFormat format) {
  return format == CacheFormat::kNvfp4E4m3 ? kMagnitudeTableBytes : 0;
}
template <CacheFormat F>
constexpr int shared_bytes() {
  constexpr int kBytes = 2 * kStages * kOperandBytes + 2 * kQueryBytes +
                         2 * raw_stages(F) * page_bytes(F) + table_bytes(F) +
                         static_cast<int>(sizeof(Control));
  static_assert(kBytes <= kMaxSharedBytes);
  return kBytes;
}

struct Shared {
  std::byte* operands;  // [K, V][kStages]
  std::byte* queries;   // [warpgroup], K-major operands as pages are
  std::byte* raw;       // [K, V][raw_stages]
  uint2* table;
  Control* control;
};

template <CacheFormat F>
__device__ Shared carve(std::byte* base) {
  Shared shared{.operands = base};
  base += 2 * kStages * kOperandBytes;
  shared.queries = base;
  base += 2 * kQueryBytes;
  shared.raw = base;
  base += 2 * raw_stages(F) * page_bytes(F);
  shared.table = reinterpret_cast<uint2*>(base);
  base += table_bytes(F);
  shared.control = reinterpret_cast<Control*>(base);
  return shared;
}

/// Entry `i` of the tile's lists goes to its place in the ascending union. One thread an entry.
__device__ void unite_lists(const AttentionPrefillArgs& args, Control& control, int kv_head,
                            int i) {
  const TokenTile& tile = control.tile;
  const int top_k = args.shape.top_k_blocks;
  const int token = i / kMaxTopK;
  std::int32_t mine = -1;
  if (token < tile.num_tokens && i % kMaxTopK < top_k) {
    const std::int64_t list =
        (std::int64_t{tile.first_token} + token) * args.shape.num_index_heads + kv_head;
    mine = args.blocks[list * top_k + i % kMaxTopK];
  }
  control.entries[i] = mine;
  control.members[i] = 0;
  const unsigned valid = __ballot_sync(~0U, mine >= 0);
  if (i % kMaxTopK == 0) {
    control.num_entries[token] = __popc(valid >> (i & 16) & 0xFFFFU);
  }
  ptx::bar_sync(kListBarrier, kListEntries);
  // Only the first entry of a block counts; the others take its place.
  bool is_first = mine >= 0;
  const int4* const entries = reinterpret_cast<const int4*>(control.entries);
#pragma unroll 4
  for (int j = 0; j < kListEntries / 4; ++j) {
    const int4 other = entries[j];
    is_first = is_first && !(other.x == mine && 4 * j < i) && !(other.y == mine && 4 * j + 1 < i) &&
               !(other.z == mine && 4 * j + 2 < i) && !(other.w == mine && 4 * j + 3 < i);
  }
  ptx::bar_sync(kListBarrier, kListEntries);
  control.entries[i] = is_first ? mine : INT_MAX;
  ptx::bar_sync(kListBarrier, kListEntries);
  int place = 0;
  int total = 0;
#pragma unroll 4
  for (int j = 0; j < kListEntries / 4; ++j) {
    const int4 other = entries[j];
    place += (other.x < mine) + (other.y < mine) + (other.z < mine) + (other.w < mine);
    total += (other.x < INT_MAX) + (other.y < INT_MAX) + (other.z < INT_MAX) + (other.w < INT_MAX);
  }
  if (mine >= 0) atomicOr(&control.members[place], 1U << token);
  if (is_first) {
    control.blocks[place] = mine;
    control.pool_rows[place] = tile.block_table[mine];
  }
  if (i == 0) control.num_blocks = total;
}

/// The blocks of a CTA: a united list, or all of them up to the tile's last.
template <bool kIsSparse>
struct BlockWalk {
  const Control& control;

  __device__ __forceinline__ int count() const { return control.num_blocks; }
  __device__ __forceinline__ int block(int i) const { return kIsSparse ? control.blocks[i] : i; }
  __device__ __forceinline__ std::int32_t pool_row(int i) const {
    return kIsSparse ? control.pool_rows[i] : control.tile.block_table[i];
  }
};

/// One warpgroup converts K (kPart 0) or V (1) of every block.
template <CacheFormat F, bool kIsSparse, int kPart>
__device__ void produce(const AttentionPrefillArgs& args, const Shared& shared, int kv_head) {
  constexpr int kRaw = raw_stages(F);
  Control& control = *shared.control;
  Pipe& pipe = control.pipes[kPart];
  const BlockWalk<kIsSparse> walk{control};
  const CachePlanes& planes = args.planes;
  const int thread = static_cast<int>(threadIdx.x) & 127;
  const int count = walk.count();
  std::byte* const raw_planes = shared.raw + kPart * kRaw * page_bytes(F);
  std::byte* const operands = shared.operands + kPart * kStages * kOperandBytes;
  const HeadPlanes& part = kPart == 0 ? planes.k : planes.v;
  const std::int64_t data = part.data(kv_head, 0);
  const std::int64_t scales = part.scales(kv_head, 0);
  // The row of the next block to load, read one block ahead.
  std::int32_t next_row = thread == 0 && count > 0 ? walk.pool_row(0) : 0;
  const auto load = [&](int i, int slot) {
    const std::byte* const row = planes.row(next_row);
    if (i + 1 < count) next_row = walk.pool_row(i + 1);
    load_page<F>(ptx::shared_address(raw_planes) + slot * page_bytes(F), row + data, row + scales,
                 ptx::shared_address(&pipe.raw_full[slot]));
  };
  if (thread == 0) {
    for (int i = 0; i < min(kRaw - 1, count); ++i) load(i, i);
  }
  const int last_position = control.tile.first_position + control.tile.num_tokens - 1;
  const KeyConverter<F, 32> convert_keys(thread / 32 * 32);
  const ValueConverter<F> convert_value(thread);
  RingPlace<kRaw> raw;
  RingPlace<kStages> place;
  int load_slot = kRaw - 1;
  for (int i = 0; i < count; ++i) {
    ptx::bar_sync(kProducerBarrier + kPart, 128);  // block i - 1 has been read
    if (thread == 0 && i + kRaw - 1 < count) load(i + kRaw - 1, load_slot);
    if (++load_slot == kRaw) load_slot = 0;
    ptx::mbarrier_wait_parity(ptx::shared_address(&pipe.raw_full[raw.slot]), raw.parity);
    ptx::mbarrier_wait_parity(ptx::shared_address(&pipe.empty[place.slot]), place.parity ^ 1);
    const std::byte* const bytes = raw_planes + raw.slot * page_bytes(F);
    std::byte* const operand = operands + place.slot * kOperandBytes;
    if constexpr (kPart == 0) {
      convert_keys(bytes, shared.table, operand);
    } else {
      // Values past the tile's last token may never have been written; P is 0 there.
      const bool is_written = walk.block(i) * kFastBlockTokens + thread <= last_position;
      convert_value(bytes, shared.table, is_written, operand);
    }
    ptx::fence_proxy_async();
    __syncwarp();
    if ((thread & 31) == 0) ptx::mbarrier_arrive(ptx::shared_address(&pipe.full[place.slot]));
    raw.advance();
    place.advance();
  }
}

/// Writes the 16 rows of a warp's token to the A operand of its warpgroup, from row `first_row` on.
template <CacheFormat F>
__device__ __forceinline__ void store_queries(const float* q, int group, bool is_token,
                                              int first_row, std::byte* operand) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int c = lane & 3;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int head = lane / 4 + 8 * half;
    const int row = first_row + head;
    const bool is_row = is_token && head < group;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 x = is_row ? *reinterpret_cast<const float2*>(q + head * kFastDim +
                                                                   key_dim(F, k, 2 * c + 8 * i))
                                : make_float2(0.0F, 0.0F);
        const int chunk = (k & 3) * 2 + i;
        *reinterpret_cast<std::uint32_t*>(operand + (k >> 2) * (kQueryBytes / 2) + row * 128 +
                                          ((chunk ^ (row & 7)) << 4) + c * 4) =
            pack_operands<F>(x.x, x.y);
      }
    }
  }
}

template <CacheFormat F, bool kIsSparse>
__device__ void consume(const AttentionPrefillArgs& args, const Shared& shared, int kv_head) {
  constexpr bool kIsBf16 = F == CacheFormat::kBf16;
  Control& control = *shared.control;
  const BlockWalk<kIsSparse> walk{control};
  const TokenTile& tile = control.tile;
  const ops::AttentionShape& shape = args.shape;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int first_of_group = warp & 4;  // the warpgroup's first token of the tile
  const bool is_token = warp < tile.num_tokens;
  const int position = tile.first_position + warp;
  const int group = shape.num_heads / shape.num_kv_heads;
  const std::int64_t first_head =
      (std::int64_t{tile.first_token} + warp) * shape.num_heads + kv_head * group;
  const float factor = softmax_factor(args.scale);

  std::byte* const queries = shared.queries + (warp / 4) * kQueryBytes;
  store_queries<F>(args.q + first_head * kFastDim, group, is_token, (warp & 3) * 16, queries);
  ptx::fence_proxy_async();
  ptx::bar_sync(kQueryBarrier + warp / 4, 128);
  const std::uint64_t a = ptx::swizzled_descriptor(ptx::shared_address(queries), 1024);
  float outputs[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) outputs[i] = 0.0F;
  Quarter quarter;
  quarter.reset();
  Merged total;
  const int last_block = is_token ? position / kFastBlockTokens : -1;
  const int num_entries = !kIsSparse ? last_block + 1 : is_token ? control.num_entries[warp] : 0;
  const int entries_of_quarter = kIsSparse ? quarter_entries(shape.top_k_blocks) : kDenseRunBlocks;
  int num_read = 0;

  const std::uint32_t operands = ptx::shared_address(shared.operands);
  Pipe& keys = control.pipes[0];
  Pipe& values = control.pipes[1];
  RingPlace<kStages> place;
  for (int i = 0; i < walk.count(); ++i) {
    const int block = walk.block(i);
    // A block that no token of the warpgroup selected is passed by; an arrival counts only once
    // the plane is there.
    bool is_read = true;
    bool is_mine = block <= last_block;
    if constexpr (kIsSparse) {
      const unsigned members = control.members[i];
      is_read = (members >> first_of_group & 15) != 0;
      is_mine = (members >> warp & 1) != 0;
    }
    ptx::mbarrier_wait_parity(ptx::shared_address(&keys.full[place.slot]), place.parity);
    std::uint32_t p[8][4];
    if (is_read) {
      float scores[64];
      const std::uint64_t b = ptx::swizzled_descriptor(operands + place.slot * kOperandBytes, 1024);
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int offset = (k / 4) * kOperandHalfBytes + (k % 4) * 32;
        const int query_offset = (k / 4) * (kQueryBytes / 2) + (k % 4) * 32;
        ptx::wgmma_m64n128k16<kIsBf16>(scores, a + (query_offset >> 4), b + (offset >> 4), k > 0);
      }
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<0>();
      ptx::pin_registers(scores);
      if (lane == 0) ptx::mbarrier_arrive(ptx::shared_address(&keys.empty[place.slot]));
      if (is_mine) {
        softmax<F>(scores, position + 1 - block * kFastBlockTokens, factor, quarter, outputs, p);
      } else {
#pragma unroll
        for (int k = 0; k < 8; ++k) {
#pragma unroll
          for (int j = 0; j < 4; ++j) p[k][j] = 0;
        }
      }
    } else if (lane == 0) {
      ptx::mbarrier_arrive(ptx::shared_address(&keys.empty[place.slot]));
    }
    ptx::mbarrier_wait_parity(ptx::shared_address(&values.full[place.slot]), place.parity);
    if (is_read) {
      const std::uint64_t b = ptx::swizzled_descriptor(
          operands + (kStages + place.slot) * kOperandBytes, 1024, kOperandHalfBytes);
      ptx::pin_registers(outputs);
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        ptx::wgmma_m64n128k16<kIsBf16, true>(outputs, p[k], b + (k * 16 * 128 >> 4), 1);
      }
      ptx::wgmma_commit_group();
      if (is_mine) ++num_read;
      const bool is_last = num_read == num_entries;
      if (is_mine && (is_last || num_read % entries_of_quarter == 0)) {
        float before[64];
        float* const out = args.out + first_head * kFastDim;
        total.read(out, group, before);
        ptx::wgmma_wait_group<0>();
        ptx::pin_registers(outputs);
        if (lane == 0) ptx::mbarrier_arrive(ptx::shared_address(&values.empty[place.slot]));
        total.add(quarter, outputs, factor, before, is_last, out, group);
      } else {
        ptx::wgmma_wait_group<0>();
        ptx::pin_registers(outputs);
        if (lane == 0) ptx::mbarrier_arrive(ptx::shared_address(&values.empty[place.slot]));
      }
    } else if (lane == 0) {
      ptx::mbarrier_arrive(ptx::shared_address(&values.empty[place.slot]));
    }
    place.advance();
  }
  if (is_token && num_entries == 0) {
    for (int i = lane; i < group * kFastDim; i += 32) args.out[first_head * kFastDim + i] = 0.0F;
  }
}

template <CacheFormat F, bool kIsSparse>
__global__ void __launch_bounds__(kThreads, 1)
    sm90_attention_prefill(const AttentionPrefillArgs args) {
  extern __shared__ __align__(1024) std::byte memory[];
  const Shared shared = carve<F>(memory);
  Control& control = *shared.control;
  const int kv_heads = args.shape.num_kv_heads;
  const int kv_head = static_cast<int>(blockIdx.x) % kv_heads;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp == 0) {
    const TokenTile tile =
        find_token_tile(args.batch, kTileTokens, static_cast<int>(blockIdx.x) / kv_heads, true);
    if (threadIdx.x == 0) control.tile = tile;
  }
  if (threadIdx.x == 32) {
    for (Pipe& pipe : control.pipes) {
      for (int i = 0; i < raw_stages(F); ++i) {
        ptx::mbarrier_init(ptx::shared_address(&pipe.raw_full[i]), 1);
      }
      for (int i = 0; i < kStages; ++i) {
        ptx::mbarrier_init(ptx::shared_address(&pipe.full[i]), 4);
        ptx::mbarrier_init(ptx::shared_address(&pipe.empty[i]), kConsumerWarps);
      }
    }
    ptx::fence_mbarrier_init();
  }
  if constexpr (F == CacheFormat::kNvfp4E4m3) {
    fill_scaled_magnitudes(shared.table, static_cast<int>(threadIdx.x), kThreads);
  }
  __syncthreads();
  if (control.tile.num_tokens == 0) return;
  if constexpr (kIsSparse) {
    if (threadIdx.x >= kConsumerThreads && threadIdx.x < kConsumerThreads + kListEntries) {
      unite_lists(args, control, kv_head, static_cast<int>(threadIdx.x) - kConsumerThreads);
    }
  } else if (threadIdx.x == 0) {
    control.num_blocks =
        (control.tile.first_position + control.tile.num_tokens - 1) / kFastBlockTokens + 1;
  }
  __syncthreads();
  if (threadIdx.x >= kConsumerThreads) {
    ptx::setmaxnreg_dec<kProducerRegisters>();
    if (threadIdx.x < kConsumerThreads + 128) {
      produce<F, kIsSparse, 0>(args, shared, kv_head);
    } else {
      produce<F, kIsSparse, 1>(args, shared, kv_head);
    }
  } else {
    ptx::setmaxnreg_inc<kConsumerRegisters>();
    consume<F, kIsSparse>(args, shared, kv_head);
  }
}

template <CacheFormat F, bool kIsSparse>
void launch(const AttentionPrefillArgs& args, cudaStream_t stream) {
  cudaFuncSetAttribute(sm90_attention_prefill<F, kIsSparse>,
                       cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes<F>());
  const auto units = static_cast<unsigned>(
      max_token_tiles(args.batch.num_tokens, args.batch.num_sequences, kTileTokens) *
      args.shape.num_kv_heads);
  sm90_attention_prefill<F, kIsSparse><<<units, kThreads, shared_bytes<F>(), stream>>>(args);
}

template <CacheFormat F>
void launch(const AttentionPrefillArgs& args, cudaStream_t stream) {
  if (args.blocks != nullptr) {
    launch<F, true>(args, stream);
  } else {
    launch<F, false>(args, stream);
  }
}

}  // namespace

bool covers_attention_prefill(const ops::AttentionShape& shape, const CachePlanes& planes,
                              bool is_sparse) {
  return shape.head_dim == kFastDim && planes.block_tokens == kFastBlockTokens &&
         shape.num_heads % shape.num_kv_heads == 0 &&
         shape.num_heads / shape.num_kv_heads <= kRowsPerToken &&
         has_cache_format(planes.k.dtype) &&
         (!is_sparse || (shape.top_k_blocks >= 1 && shape.top_k_blocks <= kMaxTopK &&
                         shape.num_index_heads == shape.num_kv_heads));
}

void launch_attention_prefill(const AttentionPrefillArgs& args, cudaStream_t stream) {
  if (args.batch.num_tokens == 0) return;
  switch (cache_format(args.planes.k.dtype, args.planes.mode)) {
    case CacheFormat::kBf16:
      return launch<CacheFormat::kBf16>(args, stream);
    case CacheFormat::kFp8:
      return launch<CacheFormat::kFp8>(args, stream);
    case CacheFormat::kNvfp4E4m3:
      return launch<CacheFormat::kNvfp4E4m3>(args, stream);
    case CacheFormat::kNvfp4Exact:
      return launch<CacheFormat::kNvfp4Exact>(args, stream);
  }
}

}  // namespace winnow::cuda
