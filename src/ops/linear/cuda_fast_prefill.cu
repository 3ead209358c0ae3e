// Linear for many tokens. Floor: 2 · tokens · rows · columns flops over the rate of bf16.
//
// A block owns 128 rows × kTokens tokens: weight rows are the M side of wgmma, tokens its N side.
// One warpgroup's elected thread copies x, bf16 in the swizzled order of pack_prefill_input(), into
// a ring of stages; the two others own 64 rows each, load their weights straight into registers in
// A order, two chunks ahead, and decode chunk i + 1 while the matrix unit works on chunk i. The
// sums of finished runs of columns (cuda_fast.h) wait in shared memory.
#include <cuda_runtime.h>

#include "ops/cuda/check.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/cuda/ptx_sm90.cuh"
#include "ops/cuda/ring_place.cuh"
#include "ops/linear/cuda_fast.h"
#include "ops/linear/cuda_lane_chunk.cuh"

namespace winnow::cuda {
namespace linear_prefill {

constexpr int kRowTiles = 8;  // of 16 rows
constexpr int kRows = 16 * kRowTiles;
constexpr int kConsumers = 2;  // warpgroups
constexpr int kConsumerThreads = 128 * kConsumers;
constexpr int kThreads = kConsumerThreads + 128;
constexpr int kCutParts = 4;         // runs of a tile that is cut
constexpr int kChunkRowBytes = 128;  // 64 bf16 of one token
constexpr int kGroupBlocks = 8;      // token blocks that share a pass over the weights

struct PrefillParams {
  const std::byte* w;
  const std::byte* packed;
  float* y;
  std::int64_t y_stride;
  int num_tiles;
  int num_chunks;
  int parts;
  int rows;
  int num_tokens;
  int row_blocks;
  int token_blocks;
  int whole_tiles;          // the rest is cut into runs
  int block_runs;           // of each block
  float4* partials;         // [run][kSums / 4][256 threads]
  std::uint32_t* arrivals;  // of each cut tile, 0 before and after
  float sum_scale;
  bool accumulate;
};

template <QuantScheme kSchemeOf, int kTokensOf, int kStagesOf>
struct PrefillConfig {
  static constexpr QuantScheme kScheme = kSchemeOf;
  static constexpr int kTokens = kTokensOf;
  static constexpr int kStages = kStagesOf;
  static constexpr int kSums = kTokens / 2;  // accumulators of a thread
  static constexpr int kStageBytes = kTokens * kChunkRowBytes;
  static constexpr int kTileFloats = kTokens * kRows;
  static constexpr int kTotalsBytes = kConsumers * 128 * kSums * 4;
  static constexpr int kBarrierBytes = 2 * kStages * 8;
  static constexpr int kSharedBytes = 1024 + kStages * kStageBytes + kTotalsBytes + kBarrierBytes;
  static_assert(kSharedBytes <= 232448);
};

/// Blocks of tokens that run side by side share weights in the second-level cache: all of a group's
/// token blocks for one row block, then the next row block.
__device__ __forceinline__ void place_tile(const PrefillParams& p, int tile, int& row_block,
                                           int& token_block) {
  const int group_tiles = kGroupBlocks * p.row_blocks;
  const int group = tile / group_tiles;
  const int in_group = tile - group * group_tiles;
  const int width = min(kGroupBlocks, p.token_blocks - group * kGroupBlocks);
  row_block = in_group / width;
  token_block = group * kGroupBlocks + in_group - row_block * width;
}

template <int kCount>
__device__ __forceinline__ void wgmma_bf16(float (&d)[kCount], const std::uint32_t (&a)[4],
                                           std::uint64_t b) {
  if constexpr (kCount == 64) {
    ptx::wgmma_m64n128k16_bf16(d, a, b);
  } else {
    ptx::wgmma_m64n256k16_bf16(d, a, b);
  }
}

/// What a block does next: a whole tile, or one run of one.
struct WorkItem {
  int tile = 0;
  int first_part = 0;
  int num_parts = 0;
  int run = -1;  // of the cut tiles'; -1: whole
};

/// The block's items in order, the same for its producer and its consumers.
class WorkList {
 public:
  __device__ __forceinline__ explicit WorkList(const PrefillParams& p)
      : tile_(static_cast<int>(blockIdx.x)), run_(static_cast<int>(blockIdx.x) * p.block_runs) {
    const int cut_tiles = p.row_blocks * p.token_blocks - p.whole_tiles;
    end_run_ = min(run_ + p.block_runs, cut_tiles * p.parts);
  }

  __device__ __forceinline__ bool next(const PrefillParams& p, WorkItem& item) {
    if (tile_ < p.whole_tiles) {
      item = {tile_, 0, p.parts, -1};
      tile_ += static_cast<int>(gridDim.x);
      return true;
    }
    if (run_ >= end_run_) return false;
    item = {p.whole_tiles + run_ / p.parts, run_ % p.parts, 1, run_};
    ++run_;
    return true;
  }

 private:
  int tile_;
  int run_;
  int end_run_;
};

template <typename C>
struct Shared {
  std::uint32_t stages;
  std::uint32_t full;
  std::uint32_t empty;
  float4* totals;

  __device__ __forceinline__ explicit Shared(char* raw) {
    const std::uint32_t base = (ptx::shared_address(raw) + 1023U) & ~1023U;
    char* const aligned = raw + (base - ptx::shared_address(raw));
    stages = base;
    totals = reinterpret_cast<float4*>(aligned + C::kStages * C::kStageBytes);
    full = base + C::kStages * C::kStageBytes + C::kTotalsBytes;
    empty = full + 8 * C::kStages;
  }
};

template <typename C>
__device__ __forceinline__ void produce(const PrefillParams& p, const Shared<C>& shared) {
  ptx::griddepcontrol_wait();
  RingPlace<C::kStages> ring;
  const int part_chunks = p.num_chunks / p.parts;
  WorkList work(p);
  WorkItem item;
  while (work.next(p, item)) {
    int row_block = 0;
    int token_block = 0;
    place_tile(p, item.tile, row_block, token_block);
    const std::byte* from =
        p.packed +
        (std::int64_t{token_block} * p.num_chunks + item.first_part * part_chunks) * C::kStageBytes;
    for (int chunk = item.num_parts * part_chunks; chunk > 0; --chunk, from += C::kStageBytes) {
      ptx::mbarrier_wait_parity(shared.empty + 8 * ring.slot, ring.parity ^ 1U);
      const std::uint32_t full = shared.full + 8 * ring.slot;
      ptx::mbarrier_arrive_expect_tx(full, C::kStageBytes);
      ptx::cp_async_bulk(shared.stages + ring.slot * C::kStageBytes, from, C::kStageBytes, full);
      ring.advance();
    }
  }
}

/// Adds the sums of a finished run to the totals, or starts them; `last` leaves the result in sums.
template <typename C>
__device__ __forceinline__ void finish_part(float (&sums)[C::kSums], float4* totals, bool first,
                                            bool last) {
#pragma unroll
  for (int i = 0; i < C::kSums; i += 4) {
    float4* const at = totals + i / 4 * 128;
    float4 sum{sums[i], sums[i + 1], sums[i + 2], sums[i + 3]};
    if (!first) {
      const float4 total = *at;
      sum = {total.x + sum.x, total.y + sum.y, total.z + sum.z, total.w + sum.w};
    }
    if (!last) {
      *at = sum;
      sum = {0.0F, 0.0F, 0.0F, 0.0F};
    }
    sums[i] = sum.x;
    sums[i + 1] = sum.y;
    sums[i + 2] = sum.z;
    sums[i + 3] = sum.w;
  }
}

__device__ __forceinline__ void store_sum(float* y, float sum, bool accumulate) {
  *y = accumulate ? *y + sum : sum;
}

template <int kCount>
__device__ __forceinline__ void store_sums(const PrefillParams& p, const float (&sums)[kCount],
                                           int first_row, int first_token, int lane) {
  const int row = first_row + lane / 4;
  const bool has_top = row < p.rows;
  const bool has_bottom = row + 8 < p.rows;
  int token = first_token + lane % 4 * 2;
  float* even = p.y + token * p.y_stride + row;
  float* odd = even + p.y_stride;
  const bool accumulate = p.accumulate;
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const bool has_even = token < p.num_tokens;
    const bool has_odd = token + 1 < p.num_tokens;
    if (has_even && has_top) store_sum(even, sums[i] * p.sum_scale, accumulate);
    if (has_odd && has_top) store_sum(odd, sums[i + 1] * p.sum_scale, accumulate);
    if (has_even && has_bottom) store_sum(even + 8, sums[i + 2] * p.sum_scale, accumulate);
    if (has_odd && has_bottom) store_sum(odd + 8, sums[i + 3] * p.sum_scale, accumulate);
    token += 8;
    even += 8 * p.y_stride;
    odd += 8 * p.y_stride;
  }
}

/// Leaves a run's sums in memory and says so.
template <typename C>
__device__ __forceinline__ void publish_run(const PrefillParams& p, const WorkItem& item,
                                            const float (&sums)[C::kSums]) {
  float4* const at = p.partials + std::int64_t{item.run} * (C::kTileFloats / 4) + threadIdx.x;
#pragma unroll
  for (int i = 0; i < C::kSums; i += 4) {
    __stcg(at + i / 4 * kConsumerThreads, float4{sums[i], sums[i + 1], sums[i + 2], sums[i + 3]});
  }
  __threadfence();
  ptx::bar_sync(1, kConsumerThreads);
  if (threadIdx.x == 0) atomicAdd(p.arrivals + item.tile - p.whole_tiles, 1U);
}

/// Adds the runs of this item's quarter of a tile once all are there. Every block is resident, so
/// waiting for the others is safe.
template <typename C>
__device__ __forceinline__ void add_runs(const PrefillParams& p, const WorkItem& item) {
  constexpr int kQuarter = C::kSums / kCutParts;
  std::uint32_t* const arrivals = p.arrivals + item.tile - p.whole_tiles;
  if (threadIdx.x == 0) {
    while (ptx::ld_acquire(arrivals) < kCutParts) {
    }
  }
  ptx::bar_sync(1, kConsumerThreads);
  const float4* const first = p.partials +
                              (std::int64_t{item.run} - item.first_part) * (C::kTileFloats / 4) +
                              threadIdx.x + item.first_part * (kQuarter / 4) * kConsumerThreads;
  float sums[kQuarter];
#pragma unroll
  for (int i = 0; i < kQuarter; i += 4) {
    float4 sum = __ldcg(first + i / 4 * kConsumerThreads);
#pragma unroll
    for (int part = 1; part < kCutParts; ++part) {
      const float4 next = __ldcg(first + part * (C::kTileFloats / 4) + i / 4 * kConsumerThreads);
      sum = {sum.x + next.x, sum.y + next.y, sum.z + next.z, sum.w + next.w};
    }
    sums[i] = sum.x;
    sums[i + 1] = sum.y;
    sums[i + 2] = sum.z;
    sums[i + 3] = sum.w;
  }
  int row_block = 0;
  int token_block = 0;
  place_tile(p, item.tile, row_block, token_block);
  const int row_tile = row_block * kRowTiles + static_cast<int>(threadIdx.x) / 32;
  store_sums(p, sums, row_tile * 16,
             token_block * C::kTokens + item.first_part * (C::kTokens / kCutParts),
             static_cast<int>(threadIdx.x) % 32);
  ptx::bar_sync(1, kConsumerThreads);
  if (threadIdx.x == 0 && atomicAdd(arrivals, 1U) == 2 * kCutParts - 1) *arrivals = 0;
}

template <typename C>
__device__ __forceinline__ void consume(const PrefillParams& p, const Shared<C>& shared,
                                        int consumer) {
  constexpr int kBytes = static_cast<int>(chunk_bytes(C::kScheme));
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float4* const totals = shared.totals + consumer * 32 * C::kSums + threadIdx.x % 128;
  ptx::griddepcontrol_wait();

  RingPlace<C::kStages> ring;
  int previous_stage = 0;
  const int part_chunks = p.num_chunks / p.parts;
  WorkList work(p);
  WorkItem item;
  while (work.next(p, item)) {
    int row_block = 0;
    int token_block = 0;
    place_tile(p, item.tile, row_block, token_block);
    const int row_tile = row_block * kRowTiles + consumer * 4 + warp;
    const std::int64_t loaded_tile = min(row_tile, p.num_tiles - 1);
    LaneSource source = lane_source<C::kScheme>(
        p.w + (loaded_tile * p.num_chunks + item.first_part * part_chunks) * kBytes, lane);

    LaneChunk<C::kScheme> raw[2];
    std::uint32_t a[2][4][4] = {};
    raw[0].load(source, 0);
    raw[1].load(source, kBytes);
#pragma unroll
    for (int step = 0; step < 4; ++step) raw[0].fragment(step, a[0][step]);
    raw[0].load(source, 2 * kBytes);

    float sums[C::kSums] = {};
    int remaining = item.num_parts * part_chunks;
    for (int part = 0; part < item.num_parts; ++part) {
      for (int chunk = 0; chunk < part_chunks; chunk += 2) {
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          ptx::mbarrier_wait_parity(shared.full + 8 * ring.slot, ring.parity);
          const std::uint64_t b =
              ptx::swizzle128_descriptor(shared.stages + ring.slot * C::kStageBytes);
          ptx::pin_registers(sums);
          ptx::wgmma_fence();
#pragma unroll
          for (int step = 0; step < 4; ++step) wgmma_bf16(sums, a[odd][step], b + step * 2);
          ptx::wgmma_commit_group();
          // The chunk before is done: its stage is free, and so are its fragments' registers.
          ptx::wgmma_wait_group<1>();
          raw[1 - odd].pin();
          if (lane == 0 && chunk + odd > 0) ptx::mbarrier_arrive(shared.empty + 8 * previous_stage);
          previous_stage = ring.slot;
          ring.advance();
#pragma unroll
          for (int step = 0; step < 4; ++step) raw[1 - odd].fragment(step, a[1 - odd][step]);
          if (remaining > 3 + odd) raw[1 - odd].load(source, (3 + odd) * kBytes);
        }
        source.advance(2 * kBytes);
        remaining -= 2;
      }
      ptx::wgmma_wait_group<0>();
      ptx::pin_registers(sums);
      if (lane == 0) ptx::mbarrier_arrive(shared.empty + 8 * previous_stage);
      const bool last = part + 1 == item.num_parts;
      if (item.num_parts > 1) finish_part<C>(sums, totals, part == 0, last);
    }
    if (item.run < 0) {
      store_sums(p, sums, row_tile * 16, token_block * C::kTokens, lane);
    } else {
      publish_run<C>(p, item, sums);
    }
  }
  WorkList again(p);
  while (again.next(p, item)) {
    if (item.run >= 0) add_runs<C>(p, item);
  }
}

template <typename C>
__global__ void __launch_bounds__(kThreads, 1) sm90_linear_prefill(const PrefillParams p) {
  extern __shared__ char raw[];
  const Shared<C> shared(raw);
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kStages; ++i) {
      ptx::mbarrier_init(shared.full + 8 * i, 1);
      ptx::mbarrier_init(shared.empty + 8 * i, kConsumers * 4);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  if (warpgroup == kConsumers) {
    ptx::setmaxnreg_dec<24>();
    if (threadIdx.x % 128 == 0) produce<C>(p, shared);
  } else {
    ptx::setmaxnreg_inc<240>();
    consume<C>(p, shared, warpgroup);
  }
}

template <QuantScheme S, int kTokens>
void launch(cudaStream_t stream, const PrefillParams& params, int num_multiprocessors) {
  using C = PrefillConfig<S, kTokens, kTokens == 256 ? 3 : 6>;
  static const cudaError_t status = cudaFuncSetAttribute(
      sm90_linear_prefill<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kSharedBytes);
  check(status, "cudaFuncSetAttribute");
  const bool has_less = params.block_runs == 0 && params.whole_tiles < num_multiprocessors;
  const int blocks = has_less ? params.whole_tiles : num_multiprocessors;
  launch_overlapping(sm90_linear_prefill<C>,
                     {.grid = dim3(static_cast<unsigned>(blocks)),
                      .block = dim3(kThreads),
                      .shared_bytes = C::kSharedBytes},
                     stream, params, "sm90_linear_prefill");
}

template <QuantScheme S>
void launch_scheme(cudaStream_t stream, const PrefillParams& params, int block_tokens,
                   int num_multiprocessors) {
  if (block_tokens == 128) {
    launch<S, 128>(stream, params, num_multiprocessors);
  } else {
    launch<S, 256>(stream, params, num_multiprocessors);
  }
}

}  // namespace linear_prefill

using namespace linear_prefill;  // NOLINT(google-build-using-namespace): of this file

bool has_prefill_kernel(const MatrixPart& part) {
  return part.num_chunks % (2 * k_parts(static_cast<int>(part.num_chunks))) == 0;
}

namespace {

/// How tiles are shared out among `blocks` blocks.
struct TilePlan {
  int whole_tiles;
  int block_runs;  // 0: none is cut
};

TilePlan plan_tiles(int tiles, int parts, int blocks) {
  const int whole = tiles / blocks * blocks;
  const int runs = (tiles - whole) * kCutParts;
  const int block_runs = (runs + blocks - 1) / blocks;
  // A last turn that most blocks share is left whole: cutting costs a trip through memory.
  if (parts != kCutParts || block_runs >= kCutParts) return {tiles, 0};
  return {whole, block_runs};
}

}  // namespace

int prefill_block_tokens(std::int64_t rows, std::int64_t num_tokens, std::int64_t num_chunks,
                         int num_multiprocessors) {
  // In quarters of a tile of 256 tokens; a block of 128 takes 0.65 of one of 256, not half.
  const auto cost = [&](int tokens) {
    const std::int64_t tiles = (rows + kRows - 1) / kRows * ((num_tokens + tokens - 1) / tokens);
    const TilePlan plan = plan_tiles(static_cast<int>(tiles), k_parts(static_cast<int>(num_chunks)),
                                     num_multiprocessors);
    const std::int64_t turns =
        (plan.whole_tiles + num_multiprocessors - 1) / num_multiprocessors * kCutParts +
        plan.block_runs;
    return static_cast<double>(turns) * (tokens == 256 ? 1.0 : 0.65);
  };
  return cost(128) < cost(256) ? 128 : 256;
}

std::int64_t prefill_partial_bound(int num_multiprocessors) {
  constexpr std::int64_t kRunBytes = std::int64_t{256} * kRows * sizeof(float);
  return (kCutParts - 1) * num_multiprocessors * kRunBytes;
}

void prefill_linear(CUstream_st* stream, const FastLinear& linear, const PrefillSpace& space,
                    int block_tokens, int num_multiprocessors) {
  PrefillParams params{
      .w = linear.w.data,
      .packed = space.packed,
      .y = linear.y + linear.w.first_row,
      .y_stride = linear.y_stride,
      .num_tiles = static_cast<int>(linear.w.num_tiles),
      .num_chunks = static_cast<int>(linear.w.num_chunks),
      .parts = k_parts(static_cast<int>(linear.w.num_chunks)),
      .rows = static_cast<int>(linear.w.rows),
      .num_tokens = static_cast<int>(linear.num_tokens),
      .row_blocks = static_cast<int>((linear.w.num_tiles + kRowTiles - 1) / kRowTiles),
      .token_blocks = static_cast<int>((linear.num_tokens + block_tokens - 1) / block_tokens),
      .whole_tiles = 0,
      .block_runs = 0,
      .partials = reinterpret_cast<float4*>(space.partials),
      .arrivals = space.counters,
      .sum_scale = sum_scale(linear.w),
      .accumulate = linear.accumulate};
  const int tiles = params.row_blocks * params.token_blocks;
  const TilePlan plan = space.partials == nullptr
                            ? TilePlan{tiles, 0}
                            : plan_tiles(tiles, params.parts, num_multiprocessors);
  params.whole_tiles = plan.whole_tiles;
  params.block_runs = plan.block_runs;
  with_fast_scheme(linear.w.scheme, [&]<QuantScheme S>() {
    launch_scheme<S>(stream, params, block_tokens, num_multiprocessors);
  });
}

}  // namespace winnow::cuda
