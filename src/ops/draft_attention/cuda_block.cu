// The drafter's attention for up to eight tokens of a sequence and one KV head: 128 rows, a warp's
// 16 being the query heads of one token.
//
// Floor: K and V of the window once, 2 · 4104 · 128 bytes for each (sequence, KV head): 134 MB or
// 31.6 us at 4.25 TB/s for 32 sequences of 4 heads. The matrix unit needs 34.4 GFLOP for those
// rows: 33 us at 1.98 GHz.
//
// One producer warpgroup copies pages of the cache (bulk copies, some pages ahead), converts each
// once to fp16 operands in shared memory, and puts the block's own K and V at their positions
// behind the context. Two consumer warpgroups of 64 rows multiply: each issues the values of a page
// together with the scores of the next, and while it is in its softmax the other has the matrix
// unit.
//
// Numerics. Operands fp16 (E4M3 exactly; Q, own K, own V and P to the nearest), sums fp32. Pages
// are those of positions [first, P + K), first being the oldest that the tile's first token sees;
// they are cut in quarters of ceil(pages / 4). Within a quarter, halves of pages in ascending
// order: m' = max(m, largest visible score), p = probability(s, m' · factor, factor), 0 where
// hidden; o = o · alpha, then one chain over the page's eight k16 steps of keys; of a row's sum
// each of four lanes has keys 8j + 2c and 8j + 2c + 1, added in two chains, then l = fma(l, alpha,
// s). Quarters are merged in ascending order as cache_fragments.cuh has it. So the result depends
// on the block alone, and not on whether one CTA takes all quarters or four take one each.
#include "ops/draft_attention/cuda_block.h"

#include <cooperative_groups.h>

#include <algorithm>

#include "ops/cuda/check.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/page_operand.cuh"
#include "ops/cuda/ring_place.cuh"
#include "ops/cuda/wgmma_f16.cuh"
#include "ops/draft_attention/cuda_block_softmax.cuh"
#include "ops/draft_attention/draft_attention.h"

namespace winnow::cuda {
namespace {

using namespace draft_block;

constexpr CacheFormat kFormat = CacheFormat::kFp8;
constexpr int kTileTokens = 8;
constexpr int kRowsPerToken = 16;
constexpr int kStages = 2;     // converted pages of K, and of V
constexpr int kRawStages = 3;  // pages of each on their way
constexpr int kQuarters = 4;
constexpr int kConsumerThreads = 256;
constexpr int kProducerThreads = 128;
constexpr int kThreads = kConsumerThreads + kProducerThreads;
constexpr int kConsumerWarps = kConsumerThreads / 32;
constexpr int kConsumerBarrier = 1;
// Of the 168 a thread that the kernel starts with, 504 for the three warpgroups.
static_assert(2 * 216 + 72 == 3 * 168);
constexpr int kProducerRegisters = 72;
constexpr int kConsumerRegisters = 216;

/// K (0) or V (1) on its way: raw in shared memory, then converted.
struct Pipe {
  std::uint64_t raw_full[kRawStages];
  std::uint64_t full[kStages];
  std::uint64_t empty[kStages];
};

/// A row's softmax of one quarter, for the other CTAs of the cluster.
struct RowState {
  float maximum;
  float sum;
};

struct Shared {
  alignas(1024) std::byte operands[2][kStages][kOperandBytes];  // later: a quarter's outputs
  std::byte raw[2][kRawStages][page_bytes(kFormat)];
  Pipe pipes[2];
  RowState rows[kTileTokens * kRowsPerToken];
};
static_assert(sizeof(Shared) <= 227 * 1024);
static_assert(sizeof(Shared::operands) >= kTileTokens * kRowsPerToken * kFastDim * sizeof(float));

/// What one CTA works on.
struct Tile {
  ops::SequenceSlice slice;
  std::int32_t first = 0;   // token of the block
  std::int32_t count = 0;   // tokens
  std::int32_t oldest = 0;  // position that the first of them sees
  std::int32_t first_page = 0;
  std::int32_t num_pages = 0;  // of all quarters
  std::int32_t begin = 0;      // of this CTA, from first_page on
  std::int32_t end = 0;
  int kv_head = 0;

  __device__ std::int32_t block_end() const { return slice.first_position + slice.num_tokens; }
  __device__ std::int32_t pages_of_quarter() const {
    return (num_pages + kQuarters - 1) / kQuarters;
  }
};

/// The oldest position that token `token` of the block sees: its own block is never hidden.
__device__ __forceinline__ std::int32_t oldest_seen(const ops::SequenceSlice& slice,
                                                    std::int32_t token, std::int32_t window) {
  return min(ops::first_visible(slice.first_position + token, window), slice.first_position);
}

template <int kCluster>
__device__ Tile find_tile(const DraftBlockArgs& args) {
  Tile tile;
  const int tiles = (args.max_slice_tokens + kTileTokens - 1) / kTileTokens;
  tile.slice = args.batch.sequences[static_cast<int>(blockIdx.z) / tiles];
  tile.first = static_cast<int>(blockIdx.z) % tiles * kTileTokens;
  tile.count = min(kTileTokens, tile.slice.num_tokens - tile.first);
  tile.kv_head = static_cast<int>(blockIdx.y);
  if (tile.count <= 0) return tile;
  tile.oldest = oldest_seen(tile.slice, tile.first, args.window);
  tile.first_page = tile.oldest / kFastBlockTokens;
  tile.num_pages = (tile.block_end() - 1) / kFastBlockTokens - tile.first_page + 1;
  tile.end = tile.num_pages;
  if constexpr (kCluster == kQuarters) {
    const std::int32_t quarter = tile.pages_of_quarter();
    tile.begin = min(static_cast<int>(blockIdx.x) * quarter, tile.num_pages);
    tile.end = min(tile.begin + quarter, tile.num_pages);
  }
  return tile;
}

/// The block's own tokens of the page that begins at `first_position`, from `qkv` into an operand.
/// By the producers.
__device__ void write_own(const DraftBlockArgs& args, const Tile& tile, int head,
                          std::int32_t first_position, std::byte* operand) {
  constexpr int kPairs = kFastDim / 2;
  constexpr float kLargest = 65504.0F;
  const ops::SequenceSlice& slice = tile.slice;
  const std::int32_t begin = max(slice.first_position - first_position, 0);
  const std::int32_t end = min(tile.block_end() - first_position, kFastBlockTokens);
  const std::int64_t width = std::int64_t{args.shape.num_heads + 2 * args.shape.num_kv_heads};
  const float* const from = args.qkv + (slice.first_token * width + head) * kFastDim;
  const int thread = static_cast<int>(threadIdx.x) % kProducerThreads;
#pragma unroll 4
  for (int i = thread; i < (end - begin) * kPairs; i += kProducerThreads) {
    const int slot = begin + i / kPairs;
    const int pair = i % kPairs;
    const std::int64_t token = first_position + slot - slice.first_position;
    const float2 x = *reinterpret_cast<const float2*>(from + token * width * kFastDim + 2 * pair);
    *reinterpret_cast<std::uint32_t*>(operand + pair / 32 * kOperandHalfBytes + slot * 128 +
                                      ((pair % 32 / 4 ^ slot % 8) << 4) + pair % 4 * 4) =
        pack_operands<kFormat>(fminf(fmaxf(x.x, -kLargest), kLargest),
                               fminf(fmaxf(x.y, -kLargest), kLargest));
  }
}

__device__ void produce(const DraftBlockArgs& args, const Tile& tile, Shared& shared) {
  const int thread = static_cast<int>(threadIdx.x) % kProducerThreads;
  const std::int32_t context = tile.slice.first_position;
  const auto position_of = [&](std::int32_t page) {
    return (tile.first_page + page) * kFastBlockTokens;
  };
  const auto load = [&](std::int32_t page, int slot) {
    if (page >= tile.end || position_of(page) >= context) return;
    const std::byte* const row = args.planes.row(tile.slice.block_table[tile.first_page + page]);
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const HeadPlanes& plane = part == 0 ? args.planes.k : args.planes.v;
      load_page<kFormat>(ptx::shared_address(shared.raw[part][slot]),
                         row + plane.data(tile.kv_head, 0), nullptr,
                         ptx::shared_address(&shared.pipes[part].raw_full[slot]));
    }
  };
  if (thread == 0) {
    for (int i = 0; i < kRawStages - 1; ++i) load(tile.begin + i, i);
  }
  bool has_waited = false;
  const ValueConverter<kFormat> convert(thread);
  RingPlace<kRawStages> raw;
  RingPlace<kStages> place;
  int load_slot = kRawStages - 1;
  for (std::int32_t page = tile.begin; page < tile.end; ++page) {
    ptx::bar_sync(kConsumerBarrier + 1, kProducerThreads);  // the page before has been read
    if (thread == 0) load(page + kRawStages - 1, load_slot);
    if (++load_slot == kRawStages) load_slot = 0;
    const std::int32_t first = position_of(page);
    const std::int32_t position = first + thread;
    const bool is_own = position >= context && position < tile.block_end();
    const bool is_cached = position >= tile.oldest && position < context;
    const bool has_own = first + kFastBlockTokens > context;
    if (has_own && !has_waited) {
      ptx::griddepcontrol_wait();
      has_waited = true;
    }
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      Pipe& pipe = shared.pipes[part];
      if (first < context) {
        ptx::mbarrier_wait_parity(ptx::shared_address(&pipe.raw_full[raw.slot]), raw.parity);
      }
      ptx::mbarrier_wait_parity(ptx::shared_address(&pipe.empty[place.slot]), place.parity ^ 1);
      std::byte* const operand = shared.operands[part][place.slot];
      if (!is_own) convert(shared.raw[part][raw.slot], nullptr, is_cached, operand);
      if (has_own) {
        const int head = args.shape.num_heads + part * args.shape.num_kv_heads + tile.kv_head;
        write_own(args, tile, head, first, operand);
      }
      ptx::fence_proxy_async();
      __syncwarp();
      if (thread % 32 == 0) ptx::mbarrier_arrive(ptx::shared_address(&pipe.full[place.slot]));
    }
    raw.advance();
    place.advance();
  }
}

/// The 16 rows of a warp's token as A operands, zeros where there is none.
__device__ __forceinline__ void load_queries(const float* q, int group, bool is_token,
                                             std::uint32_t (&queries)[8][4]) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll
  for (int step = 0; step < 8; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int head = lane / 4 + 8 * (i % 2);
      float2 x = make_float2(0.0F, 0.0F);
      if (is_token && head < group) {
        x = *reinterpret_cast<const float2*>(q + head * kFastDim + 16 * step + 2 * (lane & 3) +
                                             8 * (i / 2));
      }
      queries[step][i] = pack_operands<kFormat>(x.x, x.y);
    }
  }
}

/// The rows of one warp.
template <int kCluster>
class Consumer {
 public:
  __device__ Consumer(const DraftBlockArgs& args, const Tile& tile, Shared& shared)
      : args_(args),
        tile_(tile),
        shared_(shared),
        lane_(static_cast<int>(threadIdx.x) & 31),
        token_(tile.first + static_cast<int>(threadIdx.x) / 32),
        is_token_(static_cast<int>(threadIdx.x) / 32 < tile.count),
        group_(args.shape.num_heads / args.shape.num_kv_heads),
        oldest_(oldest_seen(tile.slice, token_, args.window)),
        factor_(softmax_factor(args.scale)) {}

  __device__ void run() {
    const std::int64_t width = args_.shape.num_heads + 2 * args_.shape.num_kv_heads;
    const std::int64_t row = (tile_.slice.first_token + token_) * width + tile_.kv_head * group_;
    load_queries(args_.qkv + row * kFastDim, group_, is_token_, queries_);
    const std::int32_t quarter = tile_.pages_of_quarter();
    state_.reset();
#pragma unroll
    for (int i = 0; i < 64; ++i) outputs_[i] = 0.0F;
    Merged merged;
    std::int32_t page = tile_.begin;
    while (page < tile_.end) {
      const std::int32_t quarter_end = min((page / quarter + 1) * quarter, tile_.end);
      ptx::wgmma_fence();
      issue_scores();
      end_scores();
      weigh(page);
      for (++page; page < quarter_end; ++page) {
        ptx::wgmma_fence();
        issue_values();
        ptx::wgmma_wait_group<0>();
        end_values();
        ptx::wgmma_fence();
        issue_scores();
        end_scores();
        weigh(page);
      }
      ptx::wgmma_fence();
      issue_values();
      ptx::wgmma_wait_group<0>();
      end_values();
      if constexpr (kCluster == 1) {
        merged.add(state_, outputs_, factor_, page == tile_.end, out_rows(), group_, is_token_);
      }
    }
    if constexpr (kCluster == kQuarters) write_quarter();
  }

 private:
  __device__ __forceinline__ float* out_rows() const {
    const std::int64_t head =
        (std::int64_t{tile_.slice.first_token} + token_) * args_.shape.num_heads +
        tile_.kv_head * group_;
    return args_.out + head * kFastDim;
  }

  __device__ __forceinline__ std::uint64_t operand(int part, int slot, int column_bytes) const {
    return ptx::swizzled_descriptor(ptx::shared_address(shared_.operands[part][slot]), 1024,
                                    static_cast<std::uint32_t>(column_bytes));
  }

  /// S = Q · K of the next page.
  __device__ __forceinline__ void issue_scores() {
    ptx::mbarrier_wait_parity(ptx::shared_address(&shared_.pipes[0].full[keys_.slot]),
                              keys_.parity);
    const std::uint64_t b = operand(0, keys_.slot, 16);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int offset = (k / 4) * kOperandHalfBytes + (k % 4) * 32;
      ptx::wgmma_m64n128k16<false, false>(scores_, queries_[k], b + (offset >> 4), k > 0);
    }
    ptx::wgmma_commit_group();
  }
  /// Waits for whatever was issued.
  __device__ __forceinline__ void end_scores() {
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(scores_);
    if (lane_ == 0) {
      ptx::mbarrier_arrive(ptx::shared_address(&shared_.pipes[0].empty[keys_.slot]));
    }
    keys_.advance();
  }

  /// O += P · V of the page whose P is in hand.
  __device__ __forceinline__ void issue_values() {
    ptx::mbarrier_wait_parity(ptx::shared_address(&shared_.pipes[1].full[values_.slot]),
                              values_.parity);
    const std::uint64_t b = operand(1, values_.slot, kOperandHalfBytes);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      ptx::wgmma_m64n128k16<false, true>(outputs_, p_[k], b + (k * 16 * 128 >> 4), 1);
    }
    ptx::wgmma_commit_group();
  }
  __device__ __forceinline__ void end_values() {
    ptx::pin_registers(outputs_);
    if (lane_ == 0) {
      ptx::mbarrier_arrive(ptx::shared_address(&shared_.pipes[1].empty[values_.slot]));
    }
    values_.advance();
  }

  /// Scores become P, and the outputs relative to the new maximum.
  __device__ __forceinline__ void weigh(std::int32_t page) {
    const std::int32_t first = (tile_.first_page + page) * kFastBlockTokens;
    float alpha[2];
    state_.weigh(scores_, oldest_ - first, tile_.block_end() - first, factor_, alpha);
#pragma unroll
    for (int i = 0; i < 64; ++i) outputs_[i] = __fmul_rn(outputs_[i], alpha[i / 2 % 2]);
    pack(scores_, p_);
  }

  /// For the cluster: outputs [row][128], and the rows' states.
  __device__ void write_quarter() {
    ptx::bar_sync(kConsumerBarrier, kConsumerThreads);  // nobody reads operands any more
    auto* const outputs = reinterpret_cast<float*>(shared_.operands);
    const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = warp * kRowsPerToken + lane_ / 4 + 8 * r;
      const float sum = state_.sum(r);
      if (lane_ % 4 == 0) shared_.rows[row] = {state_.maximum[r], sum};
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        *reinterpret_cast<float2*>(outputs + row * kFastDim + 8 * j + 2 * (lane_ & 3)) =
            make_float2(outputs_[4 * j + 2 * r], outputs_[4 * j + 2 * r + 1]);
      }
    }
  }

  const DraftBlockArgs& args_;
  const Tile& tile_;
  Shared& shared_;
  int lane_;
  std::int32_t token_;
  bool is_token_;
  int group_;
  std::int32_t oldest_;
  float factor_;
  RingPlace<kStages> keys_;
  RingPlace<kStages> values_;
  QuarterState state_;
  std::uint32_t queries_[8][4];
  std::uint32_t p_[8][4];
  float scores_[64];
  float outputs_[64];
};

/// Merges the cluster's quarters, each CTA two tokens' rows.
__device__ void merge_quarters(const DraftBlockArgs& args, const Tile& tile, Shared& shared) {
  namespace cg = cooperative_groups;
  constexpr int kRows = kTileTokens * kRowsPerToken / kQuarters;
  constexpr int kUnits = kFastDim / 4;
  const float factor = softmax_factor(args.scale);
  const int group = args.shape.num_heads / args.shape.num_kv_heads;
  const Shared* quarters[kQuarters];
#pragma unroll
  for (int i = 0; i < kQuarters; ++i) quarters[i] = cg::this_cluster().map_shared_rank(&shared, i);
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kUnits; i += kThreads) {
    const int row = static_cast<int>(blockIdx.x) * kRows + i / kUnits;
    const int token = row / kRowsPerToken;
    const int head = row % kRowsPerToken;
    if (token >= tile.count || head >= group) continue;
    MergedSoftmax merged;
    float4 total{};
#pragma unroll
    for (int quarter = 0; quarter < kQuarters; ++quarter) {
      const RowState state = quarters[quarter]->rows[row];
      const float4 x =
          reinterpret_cast<const float4*>(quarters[quarter]->operands)[row * kUnits + i % kUnits];
      if (state.maximum == kNegativeInfinity) continue;
      float a, b;
      merged.add(state.maximum, state.sum, factor, a, b);
      total = {__fmaf_rn(x.x, b, __fmul_rn(total.x, a)), __fmaf_rn(x.y, b, __fmul_rn(total.y, a)),
               __fmaf_rn(x.z, b, __fmul_rn(total.z, a)), __fmaf_rn(x.w, b, __fmul_rn(total.w, a))};
    }
    const float normalizer = merged.normalizer();
    const std::int64_t out_row =
        (std::int64_t{tile.slice.first_token} + tile.first + token) * args.shape.num_heads +
        tile.kv_head * group + head;
    reinterpret_cast<float4*>(args.out + out_row * kFastDim)[i % kUnits] = {
        __fmul_rn(total.x, normalizer), __fmul_rn(total.y, normalizer),
        __fmul_rn(total.z, normalizer), __fmul_rn(total.w, normalizer)};
  }
}

template <int kCluster>
__global__ void __launch_bounds__(kThreads, 1)
    sm90_draft_block(const __grid_constant__ DraftBlockArgs args) {
  extern __shared__ __align__(1024) std::byte bytes[];
  auto& shared = *reinterpret_cast<Shared*>(bytes);
  if (threadIdx.x == 0) {
    for (Pipe& pipe : shared.pipes) {
      for (std::uint64_t& barrier : pipe.raw_full) {
        ptx::mbarrier_init(ptx::shared_address(&barrier), 1);
      }
      for (int i = 0; i < kStages; ++i) {
        ptx::mbarrier_init(ptx::shared_address(&pipe.full[i]), kProducerThreads / 32);
        ptx::mbarrier_init(ptx::shared_address(&pipe.empty[i]), kConsumerWarps);
      }
    }
    ptx::fence_mbarrier_init();
  }
  const Tile tile = find_tile<kCluster>(args);
  __syncthreads();
  if (tile.count <= 0) return;
  if (threadIdx.x >= kConsumerThreads) {
    ptx::setmaxnreg_dec<kProducerRegisters>();
    produce(args, tile, shared);
  } else {
    ptx::setmaxnreg_inc<kConsumerRegisters>();
    ptx::griddepcontrol_wait();
    Consumer<kCluster>(args, tile, shared).run();
  }
  if constexpr (kCluster == kQuarters) {
    ptx::barrier_cluster_arrive();
    ptx::barrier_cluster_wait();
    merge_quarters(args, tile, shared);
    // The others may still read this CTA's quarter; a thread that arrives has stored what it read.
    ptx::barrier_cluster_arrive_relaxed();
    ptx::barrier_cluster_wait();
  }
}

template <int kCluster>
void launch(const DraftBlockArgs& args, CUstream_st* stream) {
  const auto kernel = sm90_draft_block<kCluster>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(sizeof(Shared))),
        "cudaFuncSetAttribute");
  const int tiles = (args.max_slice_tokens + kTileTokens - 1) / kTileTokens;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {kCluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kCluster, static_cast<unsigned>(args.shape.num_kv_heads),
                        static_cast<unsigned>(args.batch.num_sequences * tiles));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = sizeof(Shared);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  check(cudaLaunchKernelEx(&config, kernel, args), "sm90_draft_block");
}

}  // namespace

bool covers_draft_block(const ops::AttentionShape& shape, const CachePlanes& planes) {
  return shape.head_dim == kFastDim && planes.block_tokens == kFastBlockTokens &&
         shape.num_heads % shape.num_kv_heads == 0 &&
         shape.num_heads / shape.num_kv_heads <= kRowsPerToken &&
         planes.k.dtype == CacheDType::kFp8 && planes.v.dtype == CacheDType::kFp8;
}

std::int64_t draft_block_tiles(const DraftBlockArgs& args) {
  const std::int64_t tiles = (args.max_slice_tokens + kTileTokens - 1) / kTileTokens;
  return args.batch.num_sequences * tiles * args.shape.num_kv_heads;
}

int draft_block_cluster(std::int64_t num_tiles, int num_multiprocessors) {
  // A quarter takes about a third of the time of all, beginning and merge included.
  const auto rounds = [&](std::int64_t ctas) {
    return (ctas + num_multiprocessors - 1) / num_multiprocessors;
  };
  return rounds(kQuarters * num_tiles) <= 3 * rounds(num_tiles) ? kQuarters : 1;
}

void launch_draft_block(const DraftBlockArgs& args, int cluster, CUstream_st* stream) {
  if (args.batch.num_tokens == 0) return;
  if (cluster == kQuarters) return launch<kQuarters>(args, stream);
  launch<1>(args, stream);
}

}  // namespace winnow::cuda
