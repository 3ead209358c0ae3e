// The drafter's attention for up to eight tokens of a sequence and one KV head: 128 rows, a warp's
// 16 being the query heads of one token.
//
// Floor: K and V of the window once, 2 · 4104 · 128 bytes for each (sequence, KV head): 134 MB or
// 31.6 us at 4.25 TB/s for 32 sequences of 4 heads. The matrix unit needs 34.4 GFLOP for those
// rows: 33 us at 1.98 GHz, 45 us at the rate that large products reach (790 TFLOP/s).
//
// One producer warpgroup loads the cache's pages, converts each once to fp16 operands in shared
// memory, and puts the block's own K and V at their positions behind the context. Two consumer
// warpgroups of 64 rows multiply in turns: each issues the scores of a page together with the
// values of the page before.
//
// Numerics. Operands fp16 (E4M3 exactly; Q, own K, own V and P to the nearest), sums fp32. Pages
// are those of positions [first, P + K), first being the oldest that the tile's first token sees;
// they are cut in quarters of ceil(pages / 4). Within a quarter, pages in ascending order:
// m' = the largest visible score where that exceeds m by kSlack, else m; p = probability(s,
// m' · factor, factor), 0 where hidden; o = o · alpha, then one chain over the page's eight k16
// steps of keys; of a row's sum each of four lanes has keys 8j + 2c and 8j + 2c + 1, added in two
// chains, then l = fma(l, alpha, s). Quarters are merged in ascending order as cache_fragments.cuh
// has it. So the result depends on the block alone, and not on whether one CTA takes all quarters
// or four take one each.
#include "ops/draft_attention/cuda_block.h"

#include <cooperative_groups.h>

#include <algorithm>

#include "ops/cuda/check.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/ring_place.cuh"
#include "ops/cuda/wgmma_f16.cuh"
#include "ops/draft_attention/cuda_block_produce.cuh"
#include "ops/draft_attention/cuda_block_softmax.cuh"
#include "ops/draft_attention/cuda_block_tile.cuh"

namespace winnow::cuda {
namespace {

using namespace draft_block;

constexpr int kConsumerBarrier = 1;
constexpr int kQueryBarrier = 3;  // and the next: one a warpgroup
constexpr int kTurnBarrier = 5;   // likewise: its turn to issue products
// Of the 168 a thread that the kernel starts with, 504 for the three warpgroups.
static_assert(2 * 200 + 104 == 3 * 168);
constexpr int kProducerRegisters = 104;
constexpr int kConsumerRegisters = 200;

/// The 16 rows of a warp's token in the A operand of its warpgroup, zeros where there is none.
__device__ __forceinline__ void store_queries(const float* q, int group, bool is_token,
                                              std::byte* operand) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int first_row = static_cast<int>(threadIdx.x) / 32 % 4 * kRowsPerToken;
  const int chunk = lane & 15;  // eight dims
#pragma unroll
  for (int i = 0; i < kRowsPerToken / 2; ++i) {
    const int head = 2 * i + lane / 16;
    const int row = first_row + head;
    float4 x[2] = {make_float4(0.0F, 0.0F, 0.0F, 0.0F), make_float4(0.0F, 0.0F, 0.0F, 0.0F)};
    if (is_token && head < group) {
      const auto* const from = reinterpret_cast<const float4*>(q + head * kFastDim + chunk * 8);
      x[0] = from[0];
      x[1] = from[1];
    }
    *reinterpret_cast<uint4*>(operand + chunk / 8 * kQueryHalfBytes + row * 128 +
                              ((chunk % 8 ^ row % 8) << 4)) =
        make_uint4(pack_operands<kFormat>(x[0].x, x[0].y), pack_operands<kFormat>(x[0].z, x[0].w),
                   pack_operands<kFormat>(x[1].x, x[1].y), pack_operands<kFormat>(x[1].z, x[1].w));
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
    const int warpgroup = static_cast<int>(threadIdx.x) / 128;
    std::byte* const queries = shared_.queries[warpgroup];
    store_queries(args_.qkv + row * kFastDim, group_, is_token_, queries);
    ptx::fence_proxy_async();
    ptx::bar_sync(kQueryBarrier + warpgroup, 128);
    queries_ = ptx::swizzled_descriptor(ptx::shared_address(queries), 1024);
    state_.reset();
#pragma unroll
    for (int i = 0; i < 64; ++i) outputs_[i] = 0.0F;
    const std::int32_t quarter = tile_.pages_of_quarter();
    MergedRows merged;
    for (std::int32_t page = tile_.begin; page < tile_.end;) {
      const std::int32_t end = min((page / quarter + 1) * quarter, tile_.end);
      if (threadIdx.x >= 128 && page + 1 < end) ptx::bar_arrive(kTurnBarrier, kConsumerThreads);
      attend(page, end);
      page = end;
      if constexpr (kCluster == 1) {
        merged.add(state_, outputs_, factor_, page == tile_.end, out_rows(), is_token_ ? group_ : 0,
                   [] {});
      }
    }
    if constexpr (kCluster == kQuarters) write_quarter();
  }

 private:
  /// Pages [begin, end) of a quarter. The values of a page are multiplied while the softmax of the
  /// next one begins.
  __device__ __forceinline__ void attend(std::int32_t begin, std::int32_t end) {
    issue_scores();
    end_scores<0>();
    weigh(begin);
    pack(scores_, p_);
    for (std::int32_t page = begin + 1; page < end; ++page) {
      const int warpgroup = static_cast<int>(threadIdx.x) / 128;
      ptx::bar_sync(kTurnBarrier + warpgroup, kConsumerThreads);
      issue_scores();
      issue_values();
      if (warpgroup == 0 || page + 1 < end) {
        ptx::bar_arrive(kTurnBarrier + 1 - warpgroup, kConsumerThreads);
      }
      end_scores<1>();
      const RowPair alpha = weigh(page);
      end_values();
      rescale_outputs(alpha);
      pack(scores_, p_);
    }
    issue_values();
    end_values();
  }

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
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int offset = (k / 4) * kOperandHalfBytes + (k % 4) * 32;
      const int query_offset = (k / 4) * kQueryHalfBytes + (k % 4) * 32;
      ptx::wgmma_m64n128k16<false>(scores_, queries_ + (query_offset >> 4), b + (offset >> 4),
                                   k > 0);
    }
    ptx::wgmma_commit_group();
  }
  /// Waits for all but the last kPending products that were issued.
  template <int kPending>
  __device__ __forceinline__ void end_scores() {
    ptx::wgmma_wait_group<kPending>();
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
    ptx::pin_registers(outputs_);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      ptx::wgmma_m64n128k16<false, true>(outputs_, p_[k], b + (k * 16 * 128 >> 4), 1);
    }
    ptx::wgmma_commit_group();
  }
  __device__ __forceinline__ void end_values() {
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(outputs_);
    if (lane_ == 0) {
      ptx::mbarrier_arrive(ptx::shared_address(&shared_.pipes[1].empty[values_.slot]));
    }
    values_.advance();
  }

  /// Scores become weights; returns what the outputs are to be multiplied by.
  __device__ __forceinline__ RowPair weigh(std::int32_t page) {
    const std::int32_t first = (tile_.first_page + page) * kFastBlockTokens;
    return state_.weigh(scores_, oldest_ - first, tile_.block_end() - first, factor_);
  }
  __device__ __forceinline__ void rescale_outputs(const RowPair& alpha) {
    if (!__any_sync(~0U, alpha[0] != 1.0F || alpha[1] != 1.0F)) return;
#pragma unroll
    for (int i = 0; i < 64; ++i) outputs_[i] = __fmul_rn(outputs_[i], alpha[i / 2 % 2]);
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
  std::uint64_t queries_ = 0;  // descriptor
  RingPlace<kStages> keys_;
  RingPlace<kStages> values_;
  QuarterState state_;
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
