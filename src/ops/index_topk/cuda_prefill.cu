// The indexer for many tokens: scores of 256 rows (queries × index heads) against every block they
// see, the maximum over a block's keys, and the best blocks of each row.
//
// Floor: 2 · heads · 128 flops for each query and key, on fp16 tensor cores: 8192 queries that end
// at 128K with 4 heads are 1.07 TFLOP, 1.35 ms at 790 TFLOP/s. Bytes do not count: a block is read
// once for 256 rows.
// Measured on an H200 (cuda_index_prefill_bench time): 1.36 ms, the preparing launch included; 1.65
// ms when blocks are converted on their way.
//
// A first launch converts each block once to the operand's 16-bit form, where scratch has room for
// that and several tiles share it; otherwise a producer warpgroup converts blocks on their way.
//
// One CTA is a tile of 256 rows and a range of blocks. Two consumer warpgroups hold their 128 rows
// of queries in registers as two tiles of 64: while the tensor cores score one, the accumulators of
// the other are reduced to a maximum a row. A ranker warpgroup, two rows a thread, keeps each row's
// best 16 blocks in shared memory as 64-bit keys (score, lower block first) and their least score
// in a register: most blocks cost one comparison, and the others delay no tensor core. Keys are
// unique, so the selection does not depend on how the blocks are cut in ranges. A last launch
// merges the ranges and adds the forced blocks.
//
// Numerics: operands fp16 (exact for E4M3 queries and keys), bf16 for bf16 caches; one fp32 chain
// over eight steps of 16 dims (cache_fragments.cuh).
#include "ops/index_topk/cuda_prefill.h"

#include <algorithm>
#include <cmath>

#include "ops/cuda/page_operand.cuh"
#include "ops/cuda/ring_place.cuh"
#include "ops/cuda/softmax_rows.cuh"
#include "ops/cuda/token_tiles.cuh"
#include "ops/cuda/wgmma_f16.cuh"
#include "ops/index_topk/cuda_prefill_prepare.cuh"
#include "ops/index_topk/cuda_prefill_select.cuh"

namespace winnow::cuda {
namespace {

using namespace index_prefill;

constexpr int kMaxStages = 5;
constexpr int kConsumerThreads = 256;
constexpr int kProducerThreads = 128;
constexpr int kRankerThreads = 128;
constexpr int kThreads = kConsumerThreads + kProducerThreads + kRankerThreads;
constexpr int kConsumerWarps = kConsumerThreads / 32;
constexpr int kProducerWarps = kProducerThreads / 32;
constexpr int kScoreStages = 4;
constexpr int kProducerBarrier = 1;
constexpr int kRankerBarrier = 2;
// Of the 128 a thread that the kernel starts with; two warpgroups are consumers.
constexpr int kConsumerRegisters = 224;
constexpr int kProducerRegisters = 40;
constexpr int kRankerRegisters = 24;
constexpr int kRowsPerRanker = kTileRows / kRankerThreads;
constexpr int kScoreBytes = kTileRows * 16;  // four lanes hold a row's maximum in parts
constexpr std::int64_t kPreparedTileBlocks = 4400;
constexpr int kPreparedTiles = 6;           // of a sequence: from there on its blocks are prepared
constexpr int kUnitsPerMultiprocessor = 4;  // at most, when blocks are cut in ranges
constexpr std::int64_t kTileListBytes = std::int64_t{kTileRows} * kListKeys * 8;

/// How blocks come into shared memory: raw, to be converted there, or prepared by an earlier
/// launch.
template <CacheFormat F, bool kIsPrepared>
struct Pipeline {
  static constexpr int kStages = kIsPrepared ? kMaxStages : 3;  // operands
  /// Raw blocks: enough of them to hide the latency of memory.
  static constexpr int kRawStages = kIsPrepared ? 0 : F == CacheFormat::kBf16 ? 2 : 4;
  static constexpr int kSharedBytes = 1024 + kStages * kOperandBytes + kRawStages * page_bytes(F) +
                                      kTileRows * kListKeys * 8 + kScoreStages * kScoreBytes +
                                      (kIsPrepared ? 0 : kMagnitudeTableBytes);
  static_assert(kSharedBytes <= 226 * 1024);
};

struct Barriers {
  std::uint64_t raw_full[4];
  std::uint64_t full[kMaxStages];
  std::uint64_t empty[kMaxStages];
  std::uint64_t scored[kScoreStages];
  std::uint64_t ranked[kScoreStages];
};

/// lane_maxima() among the keys that a query sees: `seen` of the block for either row.
__device__ __forceinline__ RowPair visible_maxima(const float (&d)[64], int seen, int seen_below) {
  RowPair best = {-INFINITY, -INFINITY};
  const int first = 2 * (threadIdx.x & 3);
#pragma unroll
  for (int j = 0; j < 16; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (8 * j + first + i < seen) best[0] = fmaxf(best[0], d[4 * j + i]);
      if (8 * j + first + i < seen_below) best[1] = fmaxf(best[1], d[4 * j + 2 + i]);
    }
  }
  return best;
}

/// 64 rows of queries as the A operand: all 128 dims in registers.
template <CacheFormat F>
__device__ void load_queries(const float* index_q, std::int64_t first_row, int row, int num_rows,
                             std::uint32_t (&a)[8][4]) {
  const int c = static_cast<int>(threadIdx.x) & 3;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const bool is_row = row + 8 * half < num_rows;
    const float* const q = index_q + (first_row + row + 8 * half) * kFastDim;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 x =
            is_row ? *reinterpret_cast<const float2*>(q + operand_dim(F, k, 2 * c + 8 * i))
                   : make_float2(0.0F, 0.0F);
        a[k][2 * i + half] = pack_operands<F>(x.x, x.y);
      }
    }
  }
}

template <CacheFormat F>
__device__ __forceinline__ void start_scores(float (&d)[64], const std::uint32_t (&a)[8][4],
                                             std::uint32_t operand) {
  const std::uint64_t b = ptx::swizzled_descriptor(operand, 1024);
  ptx::wgmma_fence();
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const int offset = (k / 4) * kOperandHalfBytes + (k % 4) * 32;
    ptx::wgmma_m64n128k16<F == CacheFormat::kBf16, false>(d, a[k], b + (offset >> 4), k > 0);
  }
  ptx::wgmma_commit_group();
}

struct Shared {
  std::byte* operands;
  std::byte* raw;
  std::uint64_t* lists;  // [kListKeys][256 rows]
  float4* scores;        // [kScoreStages][256 rows]
  uint2* table;
  Barriers* barriers;
};

/// Copies raw blocks and converts them.
template <CacheFormat F>
__device__ void produce(const KernelArgs& k, const TokenTile& tile, const Shared& shared, int begin,
                        int end) {
  constexpr int kRaw = Pipeline<F, false>::kRawStages;
  constexpr int kStages = Pipeline<F, false>::kStages;
  const int thread = threadIdx.x - kConsumerThreads;
  const CachePlanes& planes = k.args.planes;
  // The row of the next block to load, read one block ahead.
  std::int32_t next_row = thread == 0 && begin < end ? tile.block_table[begin] : 0;
  const auto load = [&](int block, int slot) {
    const std::byte* const row = planes.row(next_row);
    if (block + 1 < end) next_row = tile.block_table[block + 1];
    load_page<F>(ptx::shared_address(shared.raw) + slot * page_bytes(F),
                 row + planes.index_k.data(0, 0), row + planes.index_k.scales(0, 0),
                 ptx::shared_address(&shared.barriers->raw_full[slot]));
  };
  if (thread == 0) {
    for (int b = begin; b < min(begin + kRaw - 1, end); ++b) load(b, b - begin);
  }
  constexpr int kWarpTokens = kFastBlockTokens / kProducerWarps;
  const KeyConverter<F, kWarpTokens> convert(thread / 32 * kWarpTokens);
  RingPlace<kRaw> raw;
  RingPlace<kStages> place;
  int load_slot = kRaw - 1;
  for (int b = begin; b < end; ++b) {
    ptx::bar_sync(kProducerBarrier,
                  kProducerThreads);  // the slot of block b - 1 has been read
    if (thread == 0 && b + kRaw - 1 < end) load(b + kRaw - 1, load_slot);
    if (++load_slot == kRaw) load_slot = 0;
    ptx::mbarrier_wait_parity(ptx::shared_address(&shared.barriers->raw_full[raw.slot]),
                              raw.parity);
    ptx::mbarrier_wait_parity(ptx::shared_address(&shared.barriers->empty[place.slot]),
                              place.parity ^ 1);
    convert(shared.raw + raw.slot * page_bytes(F), shared.table,
            shared.operands + place.slot * kOperandBytes);
    ptx::fence_proxy_async();
    ptx::mbarrier_arrive(ptx::shared_address(&shared.barriers->full[place.slot]));
    raw.advance();
    place.advance();
  }
}

/// Copies prepared blocks; one thread.
template <CacheFormat F>
__device__ void load_prepared(const KernelArgs& k, const TokenTile& tile, const Shared& shared,
                              int begin, int end) {
  const std::byte* const operands = k.operands + std::int64_t{tile.sequence} *
                                                     k.blocks_per_sequence *
                                                     std::int64_t{kOperandBytes};
  RingPlace<Pipeline<F, true>::kStages> place;
  for (int b = begin; b < end; ++b) {
    const std::uint32_t full = ptx::shared_address(&shared.barriers->full[place.slot]);
    ptx::mbarrier_wait_parity(ptx::shared_address(&shared.barriers->empty[place.slot]),
                              place.parity ^ 1);
    ptx::mbarrier_arrive_expect_tx(full, kOperandBytes);
    ptx::cp_async_bulk(ptx::shared_address(shared.operands) + place.slot * kOperandBytes,
                       operands + std::int64_t{b} * kOperandBytes, kOperandBytes, full);
    place.advance();
  }
}

template <CacheFormat F, int kStages>
__device__ void consume(const KernelArgs& k, const TokenTile& tile, const Shared& shared, int begin,
                        int end) {
  const ops::AttentionShape& shape = k.args.shape;
  const int heads = shape.num_index_heads;
  const int num_rows = tile.num_tokens * heads;
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x & 31;
  // The lane's upper row in tile 0; + 8, and + 64 for tile 1.
  const int first_row = (warp / 4) * 128 + (warp % 4) * 16 + lane / 4;

  std::uint32_t queries[2][8][4];
  const std::int64_t batch_row = std::int64_t{tile.first_token} * heads;
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    load_queries<F>(k.args.index_q, batch_row, first_row + 64 * t, num_rows, queries[t]);
  }
  // Without forced local blocks a query ranks its own block too, of which it sees a part.
  const int first_masked =
      shape.local_blocks > 0 ? end : (tile.first_position + 1) / kFastBlockTokens;
  const auto maxima = [&](const float(&d)[64], int t, int block) {
    if (block < first_masked) return lane_maxima(d);
    const int row = first_row + 64 * t;
    const int seen = tile.first_position + row / heads + 1 - block * kFastBlockTokens;
    const int seen_below = tile.first_position + (row + 8) / heads + 1 - block * kFastBlockTokens;
    return visible_maxima(d, seen, seen_below);
  };
  const std::uint32_t operands = ptx::shared_address(shared.operands);
  float* const scores = reinterpret_cast<float*>(shared.scores + first_row) + (lane & 3);
  RingPlace<kStages> place;
  RingPlace<kScoreStages> score_place;
  for (int block = begin; block < end; ++block) {
    float first[64];
    float second[64];
    ptx::mbarrier_wait_parity(ptx::shared_address(&shared.barriers->full[place.slot]),
                              place.parity);
    const std::uint32_t operand = operands + place.slot * kOperandBytes;
    start_scores<F>(first, queries[0], operand);
    start_scores<F>(second, queries[1], operand);
    ptx::mbarrier_wait_parity(ptx::shared_address(&shared.barriers->ranked[score_place.slot]),
                              score_place.parity ^ 1);
    float* const out = scores + score_place.slot * (kScoreBytes / 4);
    ptx::wgmma_wait_group<1>();
    ptx::pin_registers(first);
    RowPair best = maxima(first, 0, block);
    out[0] = best[0];
    out[8 * 4] = best[1];
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(second);
    if (lane == 0) {
      ptx::mbarrier_arrive(ptx::shared_address(&shared.barriers->empty[place.slot]));
    }
    best = maxima(second, 1, block);
    out[64 * 4] = best[0];
    out[72 * 4] = best[1];
    // Every lane for itself: racecheck does not follow writes that another lane publishes.
    ptx::mbarrier_arrive(ptx::shared_address(&shared.barriers->scored[score_place.slot]));
    place.advance();
    score_place.advance();
  }
}

/// Ranks every block for kRowsPerRanker rows a thread.
__device__ void rank(const KernelArgs& k, const TokenTile& tile, const Shared& shared, int begin,
                     int end) {
  const int thread = static_cast<int>(threadIdx.x) % kRankerThreads;
  const int heads = k.args.shape.num_index_heads;
  RowList rows[kRowsPerRanker];
#pragma unroll
  for (int i = 0; i < kRowsPerRanker; ++i) {
    const int row = thread + i * kRankerThreads;
    rows[i].keys = shared.lists + row;
    rows[i].clear();
    if (row < tile.num_tokens * heads) {
      rows[i].ranked_end = ranked_end(k.args.shape, tile.first_position + row / heads);
    }
  }
  RingPlace<kScoreStages> place;
  for (int block = begin; block < end; ++block) {
    ptx::mbarrier_wait_parity(ptx::shared_address(&shared.barriers->scored[place.slot]),
                              place.parity);
    float scores[kRowsPerRanker];
#pragma unroll
    for (int i = 0; i < kRowsPerRanker; ++i) {
      const float4 parts = shared.scores[place.slot * kTileRows + thread + i * kRankerThreads];
      scores[i] = fmaxf(fmaxf(parts.x, parts.y), fmaxf(parts.z, parts.w));
    }
    ptx::mbarrier_arrive(ptx::shared_address(&shared.barriers->ranked[place.slot]));
#pragma unroll
    for (int i = 0; i < kRowsPerRanker; ++i) rows[i].offer(scores[i], block);
    place.advance();
  }
}

template <CacheFormat F, bool kIsPrepared>
__global__ void __launch_bounds__(kThreads, 1) sm90_index_prefill(const KernelArgs k) {
  using Pipe = Pipeline<F, kIsPrepared>;
  extern __shared__ std::byte unaligned[];
  __shared__ TokenTile shared_tile;
  __shared__ Barriers barriers;
  std::byte* const base = unaligned + ((1024 - (ptx::shared_address(unaligned) & 1023)) & 1023);
  Shared shared{
      .operands = base, .raw = base + Pipe::kStages * kOperandBytes, .barriers = &barriers};
  shared.lists = reinterpret_cast<std::uint64_t*>(shared.raw + Pipe::kRawStages * page_bytes(F));
  shared.scores = reinterpret_cast<float4*>(shared.lists + kTileRows * kListKeys);
  shared.table = reinterpret_cast<uint2*>(shared.scores + kScoreStages * kTileRows);

  if (threadIdx.x < 32) {
    const TokenTile tile = find_token_tile(k.args.batch, k.queries_per_tile,
                                           static_cast<int>(blockIdx.x) / k.num_ranges, true);
    if (threadIdx.x == 0) shared_tile = tile;
  }
  if (threadIdx.x == 32) {
    for (int i = 0; i < Pipe::kRawStages; ++i)
      ptx::mbarrier_init(ptx::shared_address(&barriers.raw_full[i]), 1);
    for (int i = 0; i < Pipe::kStages; ++i) {
      ptx::mbarrier_init(ptx::shared_address(&barriers.full[i]),
                         kIsPrepared ? 1 : kProducerThreads);
      ptx::mbarrier_init(ptx::shared_address(&barriers.empty[i]), kConsumerWarps);
    }
    for (int i = 0; i < kScoreStages; ++i) {
      ptx::mbarrier_init(ptx::shared_address(&barriers.scored[i]), kConsumerThreads);
      ptx::mbarrier_init(ptx::shared_address(&barriers.ranked[i]), kRankerThreads);
    }
    ptx::fence_mbarrier_init();
  }
  if constexpr (F == CacheFormat::kNvfp4E4m3 && !kIsPrepared) {
    fill_scaled_magnitudes(shared.table, static_cast<int>(threadIdx.x), kThreads);
  }
  __syncthreads();
  const TokenTile tile = shared_tile;
  if (tile.num_tokens == 0) return;
  const int range = static_cast<int>(blockIdx.x) % k.num_ranges;
  const int first_block = k.args.shape.init_blocks;
  const int count =
      max(ranked_end(k.args.shape, tile.first_position + tile.num_tokens - 1) - first_block, 0);
  const int begin = first_block + static_cast<int>(std::int64_t{count} * range / k.num_ranges);
  const int end = first_block + static_cast<int>(std::int64_t{count} * (range + 1) / k.num_ranges);

  if (threadIdx.x < kConsumerThreads) {
    ptx::setmaxnreg_inc<kConsumerRegisters>();
    consume<F, Pipe::kStages>(k, tile, shared, begin, end);
  } else if (threadIdx.x < kConsumerThreads + kProducerThreads) {
    ptx::setmaxnreg_dec<kProducerRegisters>();
    if constexpr (!kIsPrepared) {
      produce<F>(k, tile, shared, begin, end);
    } else if (threadIdx.x == kConsumerThreads) {
      load_prepared<F>(k, tile, shared, begin, end);
    }
  } else {
    ptx::setmaxnreg_dec<kRankerRegisters>();
    rank(k, tile, shared, begin, end);
    ptx::bar_sync(kRankerBarrier, kRankerThreads);
    const int index = tile.num_tiles - 1 - static_cast<int>(blockIdx.x) / k.num_ranges;
    std::uint64_t* const out =
        k.lists + (std::int64_t{index} * k.num_ranges + range) * kTileRows * kListKeys;
    for (int i = static_cast<int>(threadIdx.x) % kRankerThreads; i < kTileRows * kListKeys;
         i += kRankerThreads) {
      out[i] = shared.lists[i % kListKeys * kTileRows + i / kListKeys];
    }
  }
}

struct Plan {
  int queries_per_tile = 0;
  std::int64_t num_tiles = 0;  // at most
  int num_ranges = 1;
};

/// Ranges fill the multiprocessors when there are few tiles, and even out tiles that see few blocks
/// and many; each costs about kUnitBlocks blocks of extra time.
Plan make_plan(const IndexPrefillArgs& args) {
  constexpr double kUnitBlocks = 8;
  Plan plan{.queries_per_tile = kTileRows / args.shape.num_index_heads};
  const std::int64_t tokens = args.batch.num_tokens;
  const std::int64_t sequences = std::max<std::int64_t>(args.batch.num_sequences, 1);
  plan.num_tiles = max_token_tiles(tokens, sequences, plan.queries_per_tile);
  // As if every sequence ended at the last position: the first of its tiles sees `fewest` blocks.
  const double most = static_cast<double>(args.num_positions) / kFastBlockTokens;
  const double fewest = std::max(
      0.0, most - static_cast<double>(tokens) / static_cast<double>(sequences) / kFastBlockTokens);
  double best = 0;
  for (int ranges = 1; ranges <= kMaxRanges; ++ranges) {
    const std::int64_t units = plan.num_tiles * ranges;
    if (ranges > 1 && units > std::int64_t{kUnitsPerMultiprocessor} * args.num_multiprocessors) {
      break;
    }
    const double load = static_cast<double>(units) / args.num_multiprocessors;
    const double waves = load + (std::ceil(load) - load) * fewest / std::max(most, 1.0);
    const double cost =
        std::max(waves * ((most + fewest) / 2 / ranges + kUnitBlocks), most / ranges + kUnitBlocks);
    if (ranges == 1 || cost < best) {
      best = cost;
      plan.num_ranges = ranges;
    }
  }
  return plan;
}

std::int64_t list_bytes(const Plan& plan) {
  return plan.num_tiles * plan.num_ranges * kTileListBytes;
}

std::int64_t blocks_per_sequence(const IndexPrefillArgs& args) {
  return (std::int64_t{args.num_positions} + kFastBlockTokens - 1) / kFastBlockTokens;
}

std::int64_t prepared_bytes(const IndexPrefillArgs& args) {
  return args.batch.num_sequences * blocks_per_sequence(args) * kOperandBytes;
}

/// Preparing pays when some tiles share its work, and costs a launch.
bool wants_prepared(const IndexPrefillArgs& args, const Plan& plan) {
  return plan.num_tiles >= std::int64_t{kPreparedTiles} * args.batch.num_sequences &&
         plan.num_tiles * blocks_per_sequence(args) >= kPreparedTileBlocks;
}

template <CacheFormat F, bool kIsPrepared>
void launch_scores(const KernelArgs& k, const Plan& plan, cudaStream_t stream) {
  constexpr int kBytes = Pipeline<F, kIsPrepared>::kSharedBytes;
  // Once is enough, but the call is cheap and holds for whichever device is current.
  cudaFuncSetAttribute(sm90_index_prefill<F, kIsPrepared>,
                       cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  const auto units = static_cast<unsigned>(plan.num_tiles * plan.num_ranges);
  sm90_index_prefill<F, kIsPrepared><<<units, kThreads, kBytes, stream>>>(k);
}

template <CacheFormat F>
void launch(const KernelArgs& k, const Plan& plan, cudaStream_t stream) {
  if (k.operands == nullptr) {
    launch_scores<F, false>(k, plan, stream);
  } else {
    constexpr int kBytes = prepare_shared_bytes<F>();
    cudaFuncSetAttribute(index_prefill_prepare<F>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         kBytes);
    const std::int64_t pages = prepared_bytes(k.args) / kOperandBytes;
    const auto blocks = static_cast<unsigned>(
        std::min<std::int64_t>(pages, std::int64_t{3} * k.args.num_multiprocessors));
    index_prefill_prepare<F><<<blocks, kPrepareThreads, kBytes, stream>>>(k);
    // Operands of nvfp4 and fp8 are alike.
    constexpr CacheFormat kLike = F == CacheFormat::kBf16 ? F : CacheFormat::kFp8;
    launch_scores<kLike, true>(k, plan, stream);
  }
  const auto merges = static_cast<unsigned>(plan.num_tiles * (kTileRows / (kMergeThreads / 32)));
  index_prefill_merge<<<merges, kMergeThreads, 0, stream>>>(k);
}

}  // namespace

bool covers_index_prefill(const ops::AttentionShape& shape, const CachePlanes& planes) {
  return shape.index_head_dim == kFastDim && planes.block_tokens == kFastBlockTokens &&
         shape.num_index_heads >= 1 && shape.num_index_heads <= 8 && shape.top_k_blocks >= 1 &&
         shape.top_k_blocks <= kListKeys && has_cache_format(planes.index_k.dtype);
}

std::int64_t index_prefill_scratch_bytes(std::int64_t max_tokens, std::int64_t max_sequences,
                                         std::int64_t max_positions, int num_index_heads,
                                         int num_multiprocessors) {
  const std::int64_t tiles =
      max_token_tiles(max_tokens, max_sequences, kTileRows / num_index_heads);
  const std::int64_t units =
      std::max<std::int64_t>(tiles, std::int64_t{kUnitsPerMultiprocessor} * num_multiprocessors);
  return units * kTileListBytes +
         (max_positions + kFastBlockTokens - 1) / kFastBlockTokens * kOperandBytes;
}

std::int64_t index_prefill_scratch_bytes(const IndexPrefillArgs& args, std::int64_t available) {
  const Plan plan = make_plan(args);
  const std::int64_t lists = list_bytes(plan);
  const std::int64_t all = lists + prepared_bytes(args);
  return wants_prepared(args, plan) && all <= available ? all : lists;
}

void launch_index_prefill(const IndexPrefillArgs& args, std::byte* scratch,
                          std::int64_t scratch_bytes, cudaStream_t stream) {
  if (args.batch.num_tokens == 0) return;
  const Plan plan = make_plan(args);
  const std::int64_t lists = list_bytes(plan);
  const bool is_prepared =
      wants_prepared(args, plan) && lists + prepared_bytes(args) <= scratch_bytes;
  const KernelArgs k{.args = args,
                     .queries_per_tile = plan.queries_per_tile,
                     .num_ranges = plan.num_ranges,
                     .lists = reinterpret_cast<std::uint64_t*>(scratch),
                     .operands = is_prepared ? scratch + lists : nullptr,
                     .blocks_per_sequence = static_cast<std::int32_t>(blocks_per_sequence(args))};
  with_cache_format(cache_format(args.planes.index_k.dtype, args.planes.mode),
                    [&]<CacheFormat F>() { launch<F>(k, plan, stream); });
}

}  // namespace winnow::cuda
