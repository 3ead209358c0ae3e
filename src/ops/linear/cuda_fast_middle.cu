// Linear for 33 to 64 tokens: the weights stream once from memory into A fragments of wgmma. Floor:
// bytes of the weights over memory bandwidth.
//
// Four blocks, one on a multiprocessor each, are a cluster: block r has the r-th run of columns
// (cuda_fast.h) of the cluster's rows, so that a multiprocessor reads a quarter of x: whole, x
// would come to more bytes from the second-level cache than the weights. Each warpgroup has 64 rows
// at a time. A warp's chunks follow each other in memory; it copies them into its own ring in
// shared memory, across rows. (Loads into registers would all wait for the last one: the assembler
// gives loads of different turns of a loop one scoreboard.)
// All warpgroups read x, packed as for prefill, from a ring of chunks that one of their threads
// fills: a warp more would cost all of them registers. A finished run goes to the blocks of the
// cluster by rows: warp i's 16 rows to block i, which adds the four runs and stores them.
#include <cuda_runtime.h>

#include <algorithm>

#include "ops/cuda/check.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/ptx.cuh"
#include "ops/cuda/ptx_sm90.cuh"
#include "ops/cuda/ring_place.cuh"
#include "ops/cuda/wgmma_bf16.cuh"
#include "ops/linear/cuda_fast.h"
#include "ops/linear/cuda_fast_decode.cuh"
#include "ops/linear/cuda_lane_chunk.cuh"

namespace winnow::cuda {
namespace linear_middle {

using linear_decode::DecodeParams;
using linear_decode::kMostSharedBytes;
using linear_decode::kParts;

constexpr int kUnitTiles = 4;  // of 16 rows: a warpgroup's, and as many blocks in a cluster
static_assert(kUnitTiles == kParts);

constexpr int kTurnChunks = 4;   // a loop's, of which runs are multiples
constexpr int kStageChunks = 2;  // of x
constexpr int kTokens = 64;
constexpr int kSums = kTokens / 2;          // accumulators of a thread
constexpr int kInputBytes = kTokens * 128;  // of a chunk
constexpr int kStageBytes = kStageChunks * kInputBytes;

/// Choices of a kernel: warpgroups of a block.
template <QuantScheme kSchemeOf, int kGroupsOf>
struct MiddleConfig {
  static constexpr QuantScheme kScheme = kSchemeOf;
  static constexpr int kGroups = kGroupsOf;
  static constexpr int kWarps = 4 * kGroups;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kChunkBytes = static_cast<int>(chunk_bytes(kScheme));
  static constexpr int kStages = 4;
  static constexpr int kWarpVectors = 32 * kSums / 4;  // a warp's sums
  static constexpr int kGroupVectors = kParts * kWarpVectors;
  static constexpr int kRunBytes = kGroups * kGroupVectors * 16;
  /// Weights in flight for each warp: what the rest leaves.
  static constexpr int kFits =
      (kMostSharedBytes - 4096 - kStages * kStageBytes - kRunBytes) / (kWarps * kChunkBytes);
  static constexpr int kSlotChunks = kFits >= 8 ? 4 : kFits >= 4 ? 2 : 1;
  static constexpr int kDepth = std::min(kFits / kSlotChunks, 12 / kSlotChunks);
  static constexpr int kSlotBytes = kSlotChunks * kChunkBytes;
  static constexpr int kWeightBytes = kWarps * kDepth * kSlotBytes;
  static constexpr int kBarriers = 2 * kStages + 2 * kGroups + kWarps * kDepth;
  static constexpr int kSharedBytes =
      1024 + kStages * kStageBytes + kRunBytes + kWeightBytes + 8 * kBarriers;
  static_assert(kDepth >= 2 && kSharedBytes <= kMostSharedBytes);
};

/// Barriers: stages full and empty; of each warpgroup, runs that have come and room for the next;
/// of each warp, its chunks.
template <typename C>
struct Shared {
  std::uint32_t stages;
  std::uint32_t full;
  std::uint32_t empty;
  std::uint32_t come;
  std::uint32_t room;
  const float4* runs;  // [warpgroup][run][kSums / 4][lane]
  std::uint32_t runs_address;
  std::uint32_t weights;  // [warp][kDepth] chunks
  std::uint32_t loaded;   // [warp][kDepth]

  __device__ __forceinline__ explicit Shared(char* raw) {
    stages = (ptx::shared_address(raw) + 1023U) & ~1023U;
    runs_address = stages + C::kStages * kStageBytes;
    runs = reinterpret_cast<const float4*>(raw + (runs_address - ptx::shared_address(raw)));
    weights = runs_address + C::kRunBytes;
    full = weights + C::kWeightBytes;
    empty = full + 8 * C::kStages;
    come = empty + 8 * C::kStages;
    room = come + 8 * C::kGroups;
    loaded = room + 8 * C::kGroups;
  }
};

__device__ __forceinline__ int cluster_rank() { return static_cast<int>(blockIdx.x) % kParts; }
__device__ __forceinline__ int cluster() { return static_cast<int>(blockIdx.x) / kParts; }

/// Turns of the cluster's warpgroups over all units of 64 rows.
template <typename C>
__device__ __forceinline__ int num_rounds(const DecodeParams& p) {
  const int units = (p.num_tiles + kUnitTiles - 1) / kUnitTiles;
  const int turn = static_cast<int>(gridDim.x) / kParts * C::kGroups;
  return (units + turn - 1) / turn;
}

/// What one thread copies into the ring: the block's run of x, once a round.
template <typename C>
class InputFill {
 public:
  __device__ __forceinline__ InputFill(const DecodeParams& p)
      : from_(p.packed + std::int64_t{cluster_rank()} * (p.num_chunks / kParts) * kInputBytes),
        stage_(0),
        left_(num_rounds<C>(p) * (p.num_chunks / kParts / kStageChunks)) {}

  __device__ __forceinline__ void next(const Shared<C>& shared, int part_stages) {
    if (left_ == 0) return;
    ptx::mbarrier_wait_parity(shared.empty + 8 * ring_.slot, ring_.parity ^ 1U);
    const std::uint32_t full = shared.full + 8 * ring_.slot;
    ptx::mbarrier_arrive_expect_tx(full, kStageBytes);
    ptx::cp_async_bulk(shared.stages + ring_.slot * kStageBytes, from_ + stage_ * kStageBytes,
                       kStageBytes, full);
    ring_.advance();
    --left_;
    if (++stage_ == part_stages) stage_ = 0;
  }

 private:
  const std::byte* from_;
  int stage_;  // of the run
  int left_;
  RingPlace<C::kStages> ring_;
};

/// A warpgroup's exchange of finished runs with its like in the other blocks.
template <typename C>
class RunExchange {
 public:
  __device__ __forceinline__ RunExchange(const Shared<C>& shared, int group)
      : runs_(shared.runs + group * C::kGroupVectors),
        come_(shared.come + 8 * group),
        room_(shared.room + 8 * group),
        thread_(static_cast<int>(threadIdx.x) % 128) {
    const int lane = thread_ % 32;
    const std::uint32_t own =
        shared.runs_address + (group * C::kGroupVectors + cluster_rank() * C::kWarpVectors) * 16;
    to_ = ptx::mapa(own + lane * 16, thread_ / 32);
    to_come_ = ptx::mapa(come_, thread_ / 32);
  }

  /// Sends the warp's sums to block `warp` and starts again from 0.
  __device__ __forceinline__ void send(float (&sums)[kSums]) {
    ptx::mbarrier_wait_parity(room_, parity_ ^ 1U);
    if (thread_ == 0) ptx::mbarrier_arrive_expect_tx(come_, C::kGroupVectors * 16);
#pragma unroll
    for (int i = 0; i < kSums; i += 4) {
      ptx::st_async(to_ + i / 4 * 512, float4{sums[i], sums[i + 1], sums[i + 2], sums[i + 3]},
                    to_come_);
    }
#pragma unroll
    for (float& sum : sums) sum = 0.0F;
  }

  /// Adds the runs in ascending order and stores this block's 16 rows of the unit.
  __device__ __forceinline__ void finish(const DecodeParams& p, int unit, bool is_last) {
    ptx::mbarrier_wait_parity(come_, parity_);
    const int lane = thread_ % 32;
    const int row = (unit * kUnitTiles + cluster_rank()) * 16 + lane / 4;
#pragma unroll
    for (int first = 0; first < kSums / 4; first += 4) {
      const int vector = first + thread_ / 32;  // eight tokens
      const float4* const from = runs_ + vector * 32 + lane;
      float4 sum = from[0];
#pragma unroll
      for (int part = 1; part < kParts; ++part) {
        const float4 next = from[part * C::kWarpVectors];
        sum = {sum.x + next.x, sum.y + next.y, sum.z + next.z, sum.w + next.w};
      }
      const int token = vector * 8 + lane % 4 * 2;
      store(p, row, token, sum.x);
      store(p, row, token + 1, sum.y);
      store(p, row + 8, token, sum.z);
      store(p, row + 8, token + 1, sum.w);
    }
    parity_ ^= 1U;
    if (is_last) return;
    // What was read may be overwritten by any of the four blocks.
    __syncwarp();
    if (lane < kParts) ptx::mbarrier_arrive_cluster(ptx::mapa(room_, lane));
  }

 private:
  __device__ __forceinline__ static void store(const DecodeParams& p, int row, int token,
                                               float sum) {
    if (row >= p.rows || token >= p.num_tokens) return;
    float* const y = p.y + token * p.y_stride + row;
    sum *= p.sum_scale;
    *y = p.accumulate ? *y + sum : sum;
  }

  const float4* runs_;
  std::uint32_t come_;
  std::uint32_t room_;
  int thread_;
  std::uint32_t to_;
  std::uint32_t to_come_;
  std::uint32_t parity_ = 0;
};

/// A warp's chunks in the order of its rounds, through its ring.
template <typename C>
class WeightStream {
 public:
  /// Starts the first copies.
  __device__ __forceinline__ WeightStream(const DecodeParams& p, const Shared<C>& shared)
      : lane_(static_cast<int>(threadIdx.x) % 32), part_chunks_(p.num_chunks / kParts) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int stride = static_cast<int>(gridDim.x) / kParts * C::kGroups * kUnitTiles;
    const int tile = cluster() * C::kGroups * kUnitTiles + warp;
    const int rounds = num_rounds<C>(p);
    const std::int64_t tile_bytes = std::int64_t{p.num_chunks} * C::kChunkBytes;
    // Only the last round's tiles can be beyond the end: they are computed from whatever the
    // registers hold, and not stored.
    const bool ends = tile + (rounds - 1) * stride >= p.num_tiles;
    slots_left_ = copies_left_ = (ends ? rounds - 1 : rounds) * (part_chunks_ / C::kSlotChunks);
    from_ = p.w + tile * tile_bytes + std::int64_t{cluster_rank()} * part_chunks_ * C::kChunkBytes;
    next_unit_ = stride * tile_bytes - std::int64_t{part_chunks_} * C::kChunkBytes;
    slots_ = shared.weights + warp * C::kDepth * C::kSlotBytes;
    loaded_ = shared.loaded + 8 * warp * C::kDepth;
    if (lane_ != 0) return;
    for (int i = 0; i < C::kDepth; ++i) ptx::mbarrier_init(loaded_ + 8 * i, 1);
    ptx::fence_proxy_async();
    for (int i = 0; i < C::kDepth; ++i) copy_next();
  }

  /// Chunk `in_slot`, a constant, of the slot that is being read; 0 waits for it.
  __device__ __forceinline__ void read(LaneChunk<C::kScheme>& chunk, int in_slot) {
    if (in_slot == 0 && slots_left_ > 0) {
      ptx::mbarrier_wait_parity(loaded_ + 8 * reading_.slot, reading_.parity);
    }
    chunk.load_shared(slots_ + reading_.slot * C::kSlotBytes + in_slot * C::kChunkBytes, lane_);
  }

  /// The slot's last chunk is in registers.
  __device__ __forceinline__ void release() {
    if (slots_left_ == 0) return;
    --slots_left_;
    reading_.advance();
    __syncwarp();
    if (lane_ == 0) copy_next();
    __syncwarp();
  }

 private:
  __device__ __forceinline__ void copy_next() {
    if (copies_left_ == 0) return;
    --copies_left_;
    const std::uint32_t barrier = loaded_ + 8 * copying_.slot;
    ptx::mbarrier_arrive_expect_tx(barrier, C::kSlotBytes);
    ptx::cp_async_bulk(slots_ + copying_.slot * C::kSlotBytes, from_, C::kSlotBytes, barrier);
    copying_.advance();
    from_ += C::kSlotBytes;
    in_run_ += C::kSlotChunks;
    if (in_run_ == part_chunks_) {
      in_run_ = 0;
      from_ += next_unit_;
    }
  }

  int lane_;
  int part_chunks_;
  int copies_left_;
  int slots_left_;
  const std::byte* from_;
  std::int64_t next_unit_;
  std::uint32_t slots_;
  std::uint32_t loaded_;
  int in_run_ = 0;
  RingPlace<C::kDepth> copying_;
  RingPlace<C::kDepth> reading_;
};

template <typename C>
__device__ __forceinline__ void consume(const DecodeParams& p, const Shared<C>& shared,
                                        WeightStream<C>& weights) {
  const int group = static_cast<int>(threadIdx.x) / 128;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int part_stages = p.num_chunks / kParts / kStageChunks;
  const int part_turns = p.num_chunks / kParts / kTurnChunks;
  const int clusters = static_cast<int>(gridDim.x) / kParts;
  RunExchange<C> exchange(shared, group);
  RingPlace<C::kStages> ring;
  int previous_stage = -1;
  const bool fills = threadIdx.x == 0;
  InputFill<C> fill(p);
  ptx::griddepcontrol_wait();
  if (fills) {
    for (int i = 1; i < C::kStages; ++i) fill.next(shared, part_stages);
  }
  __syncwarp();
  float sums[kSums] = {};
  std::uint32_t a[2][4][4] = {};
  LaneChunk<C::kScheme> raw;
  weights.read(raw, 0);
  int unit = cluster() * C::kGroups + group;
  for (int round = num_rounds<C>(p); round > 0; --round) {
    for (int turn = part_turns; turn > 0; --turn) {
#pragma unroll
      for (int c = 0; c < kTurnChunks; ++c) {
#pragma unroll
        for (int step = 0; step < 4; ++step) raw.fragment(step, a[c % 2][step]);
        if ((c + 1) % C::kSlotChunks == 0) weights.release();
        weights.read(raw, (c + 1) % C::kSlotChunks);
        if (c % kStageChunks == 0) {
          ptx::mbarrier_wait_parity(shared.full + 8 * ring.slot, ring.parity);
        }
        const std::uint64_t b = ptx::swizzle128_descriptor(shared.stages + ring.slot * kStageBytes +
                                                           c % kStageChunks * kInputBytes);
        ptx::pin_registers(sums);
        ptx::wgmma_fence();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          Wgmma<kTokens>::run(sums, a[c % 2][step], b + step * 2, true);
        }
        ptx::wgmma_commit_group();
        // The chunk before is done: its fragments' registers are free, and perhaps its stage.
        ptx::wgmma_wait_group<1>();
        raw.pin();
        if (c % kStageChunks == 0 && previous_stage >= 0) {
          if (lane == 0) ptx::mbarrier_arrive(shared.empty + 8 * previous_stage);
          if (fills) fill.next(shared, part_stages);
          __syncwarp();
        }
        if ((c + 1) % kStageChunks == 0) {
          previous_stage = ring.slot;
          ring.advance();
        }
      }
    }
    ptx::wgmma_wait_group<0>();
    ptx::pin_registers(sums);
    exchange.send(sums);
    exchange.finish(p, unit, round == 1);
    unit += clusters * C::kGroups;
  }
  // The other blocks' arrivals come to this one's memory until all are here.
  ptx::barrier_cluster_arrive();
  ptx::barrier_cluster_wait();
}

template <typename C>
__global__ __cluster_dims__(kParts, 1, 1) void __launch_bounds__(C::kThreads, 1)
    sm90_linear_middle(const DecodeParams p) {
  extern __shared__ char raw[];
  const Shared<C> shared(raw);
  ptx::griddepcontrol_launch_dependents();
  WeightStream<C> weights(p, shared);
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kStages; ++i) {
      ptx::mbarrier_init(shared.full + 8 * i, 1);
      ptx::mbarrier_init(shared.empty + 8 * i, C::kWarps);
    }
    for (int i = 0; i < C::kGroups; ++i) {
      ptx::mbarrier_init(shared.come + 8 * i, 1);
      ptx::mbarrier_init(shared.room + 8 * i, kParts * 4);
    }
    ptx::fence_proxy_async();  // the cluster's barrier orders them for the other blocks
  }
  __syncwarp();
  ptx::barrier_cluster_arrive();
  ptx::barrier_cluster_wait();
  consume<C>(p, shared, weights);
}

template <typename C>
void prepare() {
  static const cudaError_t status = cudaFuncSetAttribute(
      sm90_linear_middle<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, C::kSharedBytes);
  check(status, "cudaFuncSetAttribute");
}

/// Clusters that the device runs side by side, of any kernel that fills a multiprocessor.
int most_clusters(int num_multiprocessors) {
  using C = MiddleConfig<QuantScheme::kMxfp8, 3>;
  static_assert(2 * C::kSharedBytes > kMostSharedBytes);
  static const int most = [&] {
    prepare<C>();
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(num_multiprocessors / kParts * kParts));
    config.blockDim = dim3(C::kThreads);
    config.dynamicSmemBytes = C::kSharedBytes;
    int clusters = 0;
    check(cudaOccupancyMaxActiveClusters(&clusters, sm90_linear_middle<C>, &config),
          "cudaOccupancyMaxActiveClusters");
    return std::clamp(clusters, 1, num_multiprocessors / kParts);
  }();
  return most;
}

constexpr int num_units(const DecodeParams& params) {
  return (params.num_tiles + kUnitTiles - 1) / kUnitTiles;
}

template <typename C>
void launch(cudaStream_t stream, const DecodeParams& params, int most) {
  prepare<C>();
  const int clusters = std::min((num_units(params) + C::kGroups - 1) / C::kGroups, most);
  launch_overlapping(sm90_linear_middle<C>,
                     {.grid = dim3(static_cast<unsigned>(clusters * kParts)),
                      .block = dim3(C::kThreads),
                      .shared_bytes = C::kSharedBytes},
                     stream, params, "sm90_linear_middle");
}

/// Warpgroups of a block, 3 or 4: the fewest units for the busiest block.
int choose_groups(int units, int clusters) {
  const auto busiest = [&](int groups) {
    const int turn = clusters * groups;
    return (units + turn - 1) / turn * groups;
  };
  return busiest(4) < busiest(3) ? 4 : 3;
}

template <QuantScheme S>
void launch_scheme(cudaStream_t stream, const DecodeParams& params, int num_multiprocessors) {
  const int clusters = most_clusters(num_multiprocessors);
  if (choose_groups(num_units(params), clusters) == 3) {
    launch<MiddleConfig<S, 3>>(stream, params, clusters);
  } else {
    launch<MiddleConfig<S, 4>>(stream, params, clusters);
  }
}

}  // namespace linear_middle

using namespace linear_middle;  // NOLINT(google-build-using-namespace): of this file

int middle_tokens(const MatrixPart& part, std::int64_t num_tokens) {
  const auto chunks = static_cast<int>(part.num_chunks);
  if (k_parts(chunks) != kParts || chunks % (kParts * kTurnChunks) != 0) return 0;
  return num_tokens > 32 && num_tokens <= kTokens ? kTokens : 0;
}

void middle_linear(CUstream_st* stream, const FastLinear& linear, const std::byte* packed,
                   int num_multiprocessors) {
  const DecodeParams params = linear_decode::decode_params(linear, packed);
  with_fast_scheme(linear.w.scheme,
                   [&]<QuantScheme S>() { launch_scheme<S>(stream, params, num_multiprocessors); });
}

}  // namespace winnow::cuda
