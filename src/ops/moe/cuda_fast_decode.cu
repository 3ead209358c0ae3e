// MoE for few tokens: one persistent kernel that streams the chosen experts' weights once.
//
// Floor: the bytes of the chosen experts over the memory's bandwidth (M3.1: one token 186 MB, 43 us
// at 4.3 TB/s). So the kernel is built to keep copies in flight: each warp owns a ring in shared
// memory that the copy engine fills up to kStages pieces ahead, across items and across the two
// phases; weights are decoded straight into matrix instructions' A registers (rows of W on M, the
// expert's tokens on N), never back to memory.
//
// An item is a pair of 16-row tiles: gate and up of the same rows (phase 0), or two neighbouring
// tiles of down (phase 1). A block's four warps take the row's four segments (cuda_fast.h) and add
// their sums in order through shared memory. Every block has a run of phase 0's items and one of
// phase 1's; a phase 1 item waits until its expert's activations are written, while its weights are
// already on their way. The block that finishes the last expert of 32 rows of y sums them.
#include <cuda_bf16.h>

#include "ops/cuda/check.h"
#include "ops/cuda/ptx.cuh"
#include "ops/fast_exp.h"
#include "ops/linear/cuda_fragments.cuh"
#include "ops/moe/cuda_fast.h"

namespace winnow::cuda::fast_moe {
namespace {

constexpr int kWarps = kNumSegments;
constexpr int kThreads = kWarps * 32;
constexpr int kStages = 2;
constexpr int kStageBytes = 6336;  // a pair of runs: 5 NVFP4, 3 MXFP8 or 1 BF16 chunks each
constexpr int kSumFloats = kWarps * 2 * 32 * 4;
constexpr int kRingBytes = kWarps * kStages * kStageBytes;
constexpr int kSharedBytes = kRingBytes + kSumFloats * 4 + kWarps * kStages * 8;
static_assert(kDecodeBlocksPerMultiprocessor * (kSharedBytes + 1024) <= 228 * 1024);
static_assert(kThreads == 128, "a thread for each element of two summed tiles");

__host__ __device__ constexpr int chunks_of_stage(QuantScheme scheme) {
  return kStageBytes / (2 * static_cast<int>(chunk_bytes(scheme)));
}

__device__ std::uint32_t load_acquire(const std::uint32_t* p) {
  std::uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
  return value;
}

/// The runs of items of one block, in order.
struct Items {
  WorkPlace place;
  int phase = 0;

  /// Blocks of one multiprocessor, as they are usually placed, take neighbouring runs: their
  /// tokens' columns are then the same ones in L1.
  __device__ static int rank(int num_blocks) {
    const int num_multiprocessors = num_blocks / kDecodeBlocksPerMultiprocessor;
    const auto block = static_cast<int>(blockIdx.x);
    return block % num_multiprocessors * kDecodeBlocksPerMultiprocessor +
           block / num_multiprocessors;
  }

  __device__ void start(const Workspace& work, int num_blocks) {
    phase = -1;
    next_phase(work, num_blocks);
  }
  __device__ bool done() const { return phase == 2; }
  __device__ bool at_end(const WorkPlace& end) const {
    return place.entry > end.entry || (place.entry == end.entry && place.row >= end.row);
  }
  __device__ void next_phase(const Workspace& work, int num_blocks) {
    while (++phase < 2) {
      const WorkPlace* const begins = work.begins + phase * (num_blocks + 1) + rank(num_blocks);
      place = begins[0];
      if (!at_end(begins[1])) return;
    }
  }
  /// `num_rows` of the entry that `place` is in.
  __device__ void advance(const Workspace& work, int num_blocks, int num_rows) {
    if (++place.row == num_rows) place = {.entry = place.entry + 1, .row = 0};
    if (at_end(work.begins[phase * (num_blocks + 1) + rank(num_blocks) + 1])) {
      next_phase(work, num_blocks);
    }
  }
};

/// What of an active expert one phase needs.
struct PhaseShape {
  int num_rows = 0;    // tile pairs
  int num_chunks = 0;  // of a row
  int bytes = 0;       // of a chunk
  QuantScheme scheme = QuantScheme::kNvfp4;
};

__device__ PhaseShape phase_shape(const Layer& layer, const ActiveExpert& expert, int phase) {
  PhaseShape shape;
  shape.num_rows = phase == 0 ? expert.width / 16 : layer.hidden / 32;
  shape.num_chunks = (phase == 0 ? layer.hidden : expert.width) / 64;
  shape.scheme = phase == 0 ? expert.gate_up_scheme : expert.down_scheme;
  shape.bytes = static_cast<int>(chunk_bytes(shape.scheme));
  return shape;
}

/// Fills one warp's ring: the pieces of its segment of each item in order.
class Fetcher {
 public:
  __device__ Fetcher(const Layer& layer, const Workspace& work, int num_blocks, int segment)
      : layer_(layer), work_(work), num_blocks_(num_blocks), segment_(segment) {
    items_.start(work, num_blocks);
    load_item();
  }

  /// Starts the copies of the next piece into `slot`; nothing when there is none.
  __device__ void fetch(std::uint32_t slot, std::uint32_t barrier) {
    if (items_.done()) return;
    const int count = min(chunks_of_stage(shape_.scheme), end_ - chunk_);
    const auto bytes = static_cast<std::uint32_t>(count * shape_.bytes);
    if (threadIdx.x % 32 == 0) {
      ptx::mbarrier_arrive_expect_tx(barrier, 2 * bytes);
      const std::int64_t offset = static_cast<std::int64_t>(chunk_) * shape_.bytes;
      ptx::cp_async_bulk(slot, first_ + offset, bytes, barrier);
      ptx::cp_async_bulk(slot + bytes, second_ + offset, bytes, barrier);
    }
    chunk_ += count;
    if (chunk_ < end_) return;
    items_.advance(work_, num_blocks_, shape_.num_rows);
    load_item();
  }

 private:
  /// Skips items in which the segment is empty.
  __device__ void load_item() {
    while (!items_.done()) {
      const ActiveExpert& expert = work_.active[items_.place.entry];
      shape_ = phase_shape(layer_, expert, items_.phase);
      const int length = segment_chunks(shape_.num_chunks);
      chunk_ = segment_ * length;
      end_ = min(shape_.num_chunks, chunk_ + length);
      if (chunk_ < end_) {
        const std::int64_t tile_bytes = static_cast<std::int64_t>(shape_.num_chunks) * shape_.bytes;
        if (items_.phase == 0) {
          first_ = expert.gate + items_.place.row * tile_bytes;
          second_ = expert.up + items_.place.row * tile_bytes;
        } else {
          first_ = expert.down + 2 * items_.place.row * tile_bytes;
          second_ = first_ + tile_bytes;
        }
        return;
      }
      items_.advance(work_, num_blocks_, shape_.num_rows);
    }
  }

  const Layer& layer_;
  const Workspace& work_;
  int num_blocks_;
  int segment_;
  Items items_;
  PhaseShape shape_;
  const std::byte* first_ = nullptr;
  const std::byte* second_ = nullptr;
  int chunk_ = 0;
  int end_ = 0;
};

__device__ __forceinline__ uint4 load_shared(const std::byte* p) {
  return *reinterpret_cast<const uint4*>(p);
}

/// A lane's decoded registers of two steps of one tile.
struct Fragments {
  std::uint32_t a[2][4];
};

/// A lane's piece of one chunk in shared memory, decoded half by half.
template <QuantScheme kScheme>
struct Chunk;

template <>
struct Chunk<QuantScheme::kNvfp4> {
  uint4 words;
  Nvfp4RowScales top;
  Nvfp4RowScales bottom;

  __device__ __forceinline__ void load(const std::byte* chunk, int lane) {
    words = load_shared(chunk + lane * 16);
    const uint2 scales = *reinterpret_cast<const uint2*>(chunk + 512 + lane / 4 * 8);
    top = decode_nvfp4_scales(scales.x);
    bottom = decode_nvfp4_scales(scales.y);
  }
  template <int kHalf>
  __device__ __forceinline__ void decode(const std::byte*, int, Fragments& out) const {
    nvfp4_fragment<2 * kHalf>(kHalf == 0 ? words.x : words.z, top, bottom, out.a[0]);
    nvfp4_fragment<2 * kHalf + 1>(kHalf == 0 ? words.y : words.w, top, bottom, out.a[1]);
  }
};

template <>
struct Chunk<QuantScheme::kMxfp8> {
  std::uint32_t scales;

  __device__ __forceinline__ void load(const std::byte* chunk, int lane) {
    scales = *reinterpret_cast<const std::uint32_t*>(chunk + 1024 + lane / 4 * 4);
  }
  template <int kHalf>
  __device__ __forceinline__ void decode(const std::byte* chunk, int lane, Fragments& out) const {
    const uint4 words = load_shared(chunk + kHalf * 512 + lane * 16);
    const std::uint32_t top = decode_mxfp8_scale<kHalf>(scales);
    const std::uint32_t bottom = decode_mxfp8_scale<2 + kHalf>(scales);
    mxfp8_fragment(words.x, words.y, top, bottom, out.a[0]);
    mxfp8_fragment(words.z, words.w, top, bottom, out.a[1]);
  }
};

template <>
struct Chunk<QuantScheme::kBF16> {
  __device__ __forceinline__ void load(const std::byte*, int) {}
  template <int kHalf>
  __device__ __forceinline__ void decode(const std::byte* chunk, int lane, Fragments& out) const {
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const uint4 words = load_shared(chunk + (2 * kHalf + s) * 512 + lane * 16);
      out.a[s][0] = words.x;
      out.a[s][1] = words.y;
      out.a[s][2] = words.z;
      out.a[s][3] = words.w;
    }
  }
};

/// Where a lane finds its token's columns: null for a column without a token.
template <int kGroups>
struct Inputs {
  const std::byte* rows[kGroups];

  __device__ __forceinline__ uint4 load(int group, int chunk, int half) const {
    uint4 v = make_uint4(0, 0, 0, 0);
    if (rows[group] != nullptr) {
      asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                   : "l"(rows[group] + chunk * 128 + half * 64));
    }
    return v;
  }
};

template <int kGroups>
using Sums = float[2][kGroups][4];

template <QuantScheme kScheme, int kHalf, int kGroups>
__device__ __forceinline__ void multiply_half(const Chunk<kScheme>& first,
                                              const Chunk<kScheme>& second,
                                              const std::byte* first_at, const std::byte* second_at,
                                              int lane, const uint4 (&b)[kGroups],
                                              Sums<kGroups>& sums) {
  Fragments top;
  Fragments bottom;
  first.template decode<kHalf>(first_at, lane, top);
  second.template decode<kHalf>(second_at, lane, bottom);
#pragma unroll
  for (int n = 0; n < kGroups; ++n) {
    ptx::mma_m16n8k16_bf16(sums[0][n], top.a[0], b[n].x, b[n].y);
    ptx::mma_m16n8k16_bf16(sums[1][n], bottom.a[0], b[n].x, b[n].y);
    ptx::mma_m16n8k16_bf16(sums[0][n], top.a[1], b[n].z, b[n].w);
    ptx::mma_m16n8k16_bf16(sums[1][n], bottom.a[1], b[n].z, b[n].w);
  }
}

/// Columns of one chunk of each token, loaded a chunk before they are used where registers allow.
template <int kGroups>
struct Operands {
  static constexpr bool kIsAhead = kGroups == 1;
  uint4 next[2][kGroups];

  __device__ __forceinline__ void load(const Inputs<kGroups>& inputs, int chunk) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int n = 0; n < kGroups; ++n) next[half][n] = inputs.load(n, chunk, half);
    }
  }
};

/// One piece: `count` chunks of both tiles, the first of which is the row's chunk number `chunk`;
/// `last` is the segment's last.
template <QuantScheme kScheme, int kGroups>
__device__ __forceinline__ void multiply_stage(const std::byte* stage, int count, int chunk,
                                               int last, int lane, const Inputs<kGroups>& inputs,
                                               Operands<kGroups>& operands, Sums<kGroups>& sums) {
  constexpr int kBytes = static_cast<int>(chunk_bytes(kScheme));
#pragma unroll(kGroups == 1 ? 2 : 1)
  for (int j = 0; j < count; ++j) {
    uint4 b[2][kGroups];
    if constexpr (Operands<kGroups>::kIsAhead) {
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
        b[0][n] = operands.next[0][n];
        b[1][n] = operands.next[1][n];
      }
      operands.load(inputs, min(chunk + j + 1, last));
    } else {
#pragma unroll
      for (int n = 0; n < kGroups; ++n) b[0][n] = inputs.load(n, chunk + j, 0);
    }
    const std::byte* const first_at = stage + j * kBytes;
    const std::byte* const second_at = stage + (count + j) * kBytes;
    Chunk<kScheme> first;
    Chunk<kScheme> second;
    first.load(first_at, lane);
    second.load(second_at, lane);
    multiply_half<kScheme, 0>(first, second, first_at, second_at, lane, b[0], sums);
    if constexpr (!Operands<kGroups>::kIsAhead) {
#pragma unroll
      for (int n = 0; n < kGroups; ++n) b[1][n] = inputs.load(n, chunk + j, 1);
    }
    multiply_half<kScheme, 1>(first, second, first_at, second_at, lane, b[1], sums);
  }
}

struct Params {
  Layer layer;
  Workspace work;
  int num_blocks;
};

/// One warp's place in its ring.
struct Ring {
  std::byte* stages;
  std::uint64_t* barriers;
  int slot = 0;
  std::uint32_t parity = 0;

  __device__ void wait() const {
    ptx::mbarrier_wait_parity(ptx::shared_address(barriers + slot), parity);
  }
  __device__ const std::byte* stage() const { return stages + slot * kStageBytes; }
  /// Every lane has read the stage: the next piece may take its place.
  __device__ void refill(Fetcher& fetcher) {
    __syncwarp();
    fetcher.fetch(ptx::shared_address(stages + slot * kStageBytes),
                  ptx::shared_address(barriers + slot));
    if (++slot == kStages) {
      slot = 0;
      parity ^= 1U;
    }
  }
};

/// (u + 1) · g · sigmoid(alpha · g), as mlp.h.
__device__ float activate(float gate, float up, float alpha, float limit) {
  const float g = gate < limit ? gate : limit;
  const float capped = up < limit ? up : limit;
  const float u = capped > -limit ? capped : -limit;
  const float a = g / (1.0F + ops::fast_exp(-(alpha * g)));
  return (u + 1.0F) * a;
}

/// Sum over segments of the value that lane `at / 4` of every warp holds in register at % 4.
__device__ float sum_segments(const float* sums, int tile, int at) {
  float total = 0.0F;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += sums[(w * 2 + tile) * 128 + at];
  return total;
}

/// Adds the warps' sums of column group `n` and hands them on; every thread of the block.
__device__ __forceinline__ void finish_group(const Params& params, const ActiveExpert& expert,
                                             int phase, int row, int n, float* shared_sums) {
  const int at = static_cast<int>(threadIdx.x);
  const int lane = at / 4;
  const int tile_row = lane / 4 + at % 4 / 2 * 8;
  const int column = 8 * n + lane % 4 * 2 + at % 2;
  if (column >= expert.num_tokens) return;
  const std::int64_t slot = expert.first_slot + column;
  if (phase == 0) {
    const float gate = sum_segments(shared_sums, 0, at) * expert.gate_scale;
    const float up = sum_segments(shared_sums, 1, at) * expert.up_scale;
    auto* const out = reinterpret_cast<__nv_bfloat16*>(params.work.activations);
    out[slot * params.layer.max_width() + operand_index(row * 16 + tile_row)] =
        __float2bfloat16_rn(activate(gate, up, params.layer.alpha, params.layer.limit));
  } else {
    float* const out = params.work.outputs + slot * params.layer.hidden + row * 32 + tile_row;
    out[0] = sum_segments(shared_sums, 0, at) * expert.down_scale;
    out[16] = sum_segments(shared_sums, 1, at) * expert.down_scale;
  }
}

/// y of 32 rows, once all experts are done with them.
__device__ void combine(const Params& params, int row) {
  const Layer& layer = params.layer;
  const Workspace& work = params.work;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int column = row * 32 + lane;
  const int num_pairs = layer.num_pairs();
  for (int t = static_cast<int>(threadIdx.x) / 32; t < layer.num_tokens; t += kWarps) {
    float routed = 0.0F;
    for (int k = 0; k < layer.top_k; ++k) {
      const std::int64_t slot = work.slot_of[t * layer.top_k + k];
      routed = fmaf(work.weights[t * layer.top_k + k],
                    __ldcg(work.outputs + slot * layer.hidden + column), routed);
    }
    const float shared =
        layer.has_shared()
            ? __ldcg(work.outputs + static_cast<std::int64_t>(num_pairs + t) * layer.hidden +
                     column)
            : 0.0F;
    float* const y = layer.y + static_cast<std::int64_t>(t) * layer.hidden + column;
    *y += fmaf(layer.routed_scale, routed, shared);
  }
}

/// One item by the whole block.
template <QuantScheme kScheme, int kGroups>
__device__ __forceinline__ void run_item(const Params& params, const ActiveExpert& expert,
                                         const Items& items, Ring& ring, Fetcher& fetcher,
                                         float* shared_sums) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const PhaseShape shape = phase_shape(params.layer, expert, items.phase);
  Inputs<kGroups> inputs;
#pragma unroll
  for (int n = 0; n < kGroups; ++n) {
    const int column = 8 * n + lane / 4;
    inputs.rows[n] = nullptr;
    if (column < expert.num_tokens) {
      const std::int64_t slot = expert.first_slot + column;
      const std::byte* const row =
          items.phase == 0 ? params.work.inputs +
                                 std::int64_t{params.work.token_of[slot]} * params.layer.hidden * 2
                           : params.work.activations + slot * params.layer.max_width() * 2;
      inputs.rows[n] = row + lane % 4 * 16;
    }
  }
  Sums<kGroups> sums = {};
  const int length = segment_chunks(shape.num_chunks);
  const int end = min(shape.num_chunks, (warp + 1) * length);
  Operands<kGroups> operands;
  if (Operands<kGroups>::kIsAhead && warp * length < end) operands.load(inputs, warp * length);
  for (int chunk = warp * length; chunk < end;) {
    const int count = min(chunks_of_stage(kScheme), end - chunk);
    ring.wait();
    multiply_stage<kScheme, kGroups>(ring.stage(), count, chunk, end - 1, lane, inputs, operands,
                                     sums);
    ring.refill(fetcher);
    chunk += count;
  }
#pragma unroll
  for (int n = 0; n < kGroups; ++n) {
    if (8 * n >= expert.num_tokens) break;
    __syncthreads();  // the sums before these have been read
    auto* const mine = reinterpret_cast<float4*>(shared_sums) + warp * 64 + lane;
    mine[0] = make_float4(sums[0][n][0], sums[0][n][1], sums[0][n][2], sums[0][n][3]);
    mine[32] = make_float4(sums[1][n][0], sums[1][n][1], sums[1][n][2], sums[1][n][3]);
    __syncthreads();
    finish_group(params, expert, items.phase, items.place.row, n, shared_sums);
  }
}

template <QuantScheme kScheme>
__device__ __forceinline__ void run_item_of(const Params& params, const ActiveExpert& expert,
                                            const Items& items, Ring& ring, Fetcher& fetcher,
                                            float* shared_sums) {
  if (expert.num_tokens <= 8) {
    run_item<kScheme, 1>(params, expert, items, ring, fetcher, shared_sums);
  } else if (expert.num_tokens <= 16) {
    run_item<kScheme, 2>(params, expert, items, ring, fetcher, shared_sums);
  } else {
    run_item<kScheme, 4>(params, expert, items, ring, fetcher, shared_sums);
  }
}

__global__ void __launch_bounds__(kThreads, kDecodeBlocksPerMultiprocessor)
    moe_decode(const __grid_constant__ Params params) {
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ bool is_last;
  const Workspace& work = params.work;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const bool is_lane_0 = threadIdx.x % 32 == 0;
  auto* const shared_sums = reinterpret_cast<float*>(shared + kRingBytes);
  Ring ring{
      .stages = shared + warp * kStages * kStageBytes,
      .barriers = reinterpret_cast<std::uint64_t*>(shared_sums + kSumFloats) + warp * kStages};
  if (is_lane_0) {
    for (int i = 0; i < kStages; ++i) ptx::mbarrier_init(ptx::shared_address(ring.barriers + i), 1);
    ptx::fence_mbarrier_init();
  }
  __syncwarp();
  Fetcher fetcher(params.layer, work, params.num_blocks, warp);
  for (int i = 0; i < kStages; ++i) {
    fetcher.fetch(ptx::shared_address(ring.stages + i * kStageBytes),
                  ptx::shared_address(ring.barriers + i));
  }
  const int num_active = *work.num_active;
  Items items;
  items.start(work, params.num_blocks);
  int ready_entry = -1;
  while (!items.done()) {
    const ActiveExpert& expert = work.active[items.place.entry];
    const PhaseShape shape = phase_shape(params.layer, expert, items.phase);
    std::uint32_t* const entry_counter = work.counters + Workspace::kEntries + items.place.entry;
    if (items.phase == 1 && ready_entry != items.place.entry) {
      ready_entry = items.place.entry;
      // Each warp of a block counts a finished item of phase 0.
      const auto target = static_cast<std::uint32_t>(expert.width / 16 * kWarps);
      if (is_lane_0) {
        while (load_acquire(entry_counter) < target) __nanosleep(100);
      }
      __syncwarp();
    }
    switch (shape.scheme) {
      case QuantScheme::kNvfp4:
        run_item_of<QuantScheme::kNvfp4>(params, expert, items, ring, fetcher, shared_sums);
        break;
      case QuantScheme::kMxfp8:
        run_item_of<QuantScheme::kMxfp8>(params, expert, items, ring, fetcher, shared_sums);
        break;
      default:
        run_item_of<QuantScheme::kBF16>(params, expert, items, ring, fetcher, shared_sums);
        break;
    }
    if (items.phase == 0) {
      __syncwarp();
      if (is_lane_0) {
        __threadfence();
        atomicAdd(entry_counter, 1U);
      }
    } else {
      __syncthreads();
      if (threadIdx.x == 0) {
        __threadfence();  // for the whole block: the barrier before it is cumulative
        std::uint32_t* const counter = work.counters + Workspace::kRows + items.place.row;
        is_last = atomicAdd(counter, 1U) + 1 == static_cast<std::uint32_t>(num_active);
        if (is_last) *counter = 0;
        __threadfence();
      }
      __syncthreads();
      if (is_last) combine(params, items.place.row);
    }
    items.advance(work, params.num_blocks, shape.num_rows);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(work.counters + Workspace::kExitTicket, 1U) + 1 == gridDim.x;
  }
  __syncthreads();
  if (!is_last) return;
  for (int i = static_cast<int>(threadIdx.x); i < num_active; i += kThreads) {
    work.counters[Workspace::kEntries + i] = 0;
  }
  if (threadIdx.x == 0) work.counters[Workspace::kExitTicket] = 0;
}

}  // namespace

void decode(const Layer& layer, const Workspace& work, int num_blocks, cudaStream_t stream) {
  static const cudaError_t kConfigured =
      cudaFuncSetAttribute(moe_decode, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  check(kConfigured, "cudaFuncSetAttribute");
  moe_decode<<<static_cast<unsigned>(num_blocks), kThreads, kSharedBytes, stream>>>(
      {layer, work, num_blocks});
  check_launch("moe_decode");
}

}  // namespace winnow::cuda::fast_moe
